"""One scenario and its verdict: what is to come of it stands there before, and every oracle is asked each time."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_dgc.simulation import oracles
from elastic_dgc.simulation.conservation import conserved
from elastic_dgc.simulation.faults import Fault
from elastic_dgc.simulation.setting import Setting
from elastic_dgc.simulation.world import World

EXPECTED = {
    "equal": "the undisturbed run, bit for bit",
    "inexact": "no exact copy can be left: what is lost is measured, and told",
    "unprotected": "perhaps no exact copy is left: one of the two",
    "saved": "the run stops, its state saved",
    "stopped": "the run stops",
}


@dataclass(frozen=True)
class Scenario:
    """`expected`: one of `EXPECTED`. `row`, `column`: where it stands in the table. `told`: what the coordinator must
    have said. `again`: attempts that were decided may be trained again (no copy of them is left). `all_happen`: each
    fault must have happened, or the scenario shows nothing. `saves`: so many checkpoints at least."""

    name: str
    setting: Setting
    faults: tuple[Fault, ...]
    seed: int = 0
    expected: str = "equal"
    row: str = ""
    column: str = ""
    told: tuple[str, ...] = ()
    again: bool = False
    all_happen: bool = True
    saves: int = 0

    def __post_init__(self) -> None:
        if self.expected not in EXPECTED:
            raise ValueError(f"{self.name}: expected = {self.expected!r} is none of {list(EXPECTED)}")


@dataclass(frozen=True)
class Verdict:
    """What the oracles found: `wrong` is empty where all held. `exact`: no inexact copy was taken."""

    name: str
    row: str
    column: str
    expected: str
    wrong: tuple[str, ...]
    exact: bool
    views: int
    fired: int
    virtual_s: float
    ends: tuple[str, ...] = field(default=())


def play(scenario: Scenario) -> Verdict:
    """Run a scenario and ask every oracle."""
    world = World(scenario.setting, scenario.faults, scenario.seed)
    over = world.run()
    return judge(scenario, world, over)


def judge(scenario: Scenario, world: World, over: bool) -> Verdict:
    """`over`: what `World.run` returned."""
    wrong = list(world.watch.wrong)
    if not over:
        wrong.append(f"it came to no end: {_stand(world)}")
    wrong += oracles.errors(world)
    exact = all(one.tier.exact for one in world.watch.returns)
    if scenario.expected in ("equal", "saved", "stopped") and not exact:
        wrong.append(f"an inexact copy was taken: {[one for one in world.watch.returns if not one.tier.exact]}")
    if scenario.expected == "inexact" and exact:
        wrong.append("no inexact copy was taken, and one was expected")
    wrong += oracles.views(world, scenario.again)
    if over and not oracles.errors(world):
        wrong += _at_the_end(scenario, world, exact)
    unmoved = [str(one) for one in world.strikes.waiting if one.kind != "poison"]
    if scenario.all_happen and unmoved:
        wrong.append(f"it did not happen: {'; '.join(unmoved)}")
    if len(world.durable.written) < scenario.saves:
        wrong.append(f"{len(world.durable.written)} checkpoints were written, {scenario.saves} were to be")
    texts = [text for _, _, text in world.said] + [world.platform.coordinator.finished]
    wrong += [f"nobody was told {part!r}" for part in scenario.told if not any(part in text for text in texts)]
    return Verdict(
        scenario.name, scenario.row, scenario.column, scenario.expected, tuple(wrong), exact, len(world.views),
        len(world.strikes.fired), world.clock.now, tuple(str(one.ended) for one in world.platform.workers),
    )  # fmt: skip


def _at_the_end(scenario: Scenario, world: World, exact: bool) -> list[str]:
    wrong = oracles.one_outcome(world) + oracles.owners(world) + oracles.agreed(world)
    done = oracles.finished(world)
    if scenario.expected == "stopped":
        return wrong + (["it came to the end of the run"] if done else [])
    if not done:
        return [*wrong, "nobody came to the end"]
    stopped_at = done[0].decided if scenario.expected == "saved" else None
    if scenario.expected != "saved":
        wrong += [f"{one.uid} ended at {one.decided}" for one in done if one.decided != world.setting.recipe.attempts]
        wrong += oracles.every_attempt(world, scenario.again) if exact else []
        wrong += conserved(world)
    if exact:
        wrong += oracles.equal(world)
    return wrong + oracles.checkpoints(world, exact, stopped_at)


def _stand(world: World) -> str:
    living = [
        f"{one.address} in view {one.agent.view.number if one.agent.view else None} of {one.agent.number}, "
        f"{one.agent.doing}"
        for one in world.platform.workers
        if one.alive
    ]
    return f"at {world.clock.now:.1f} s: {'; '.join(living)}; last said: {world.said[-3:]}"
