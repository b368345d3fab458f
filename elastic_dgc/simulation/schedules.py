"""Random schedules: one to three faults anywhere, on any group, with any recipe. A seed gives one, always the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

from elastic_dgc.simulation.faults import ANYBODY, CHANGE, POINTS, Fault
from elastic_dgc.simulation.matrix.variations import ATTEMPT, KINDS
from elastic_dgc.simulation.scenario import Scenario
from elastic_dgc.simulation.setting import Setting
from elastic_dgc.simulation.training import Recipe

FAULTS = (
    "crash", "crash", "crash", "node", "node", "freeze", "drop", "one-way", "partition", "head", "keeper",
    "coordinator", "away", "all", "all and coordinator", "every node", "join", "join", "leave", "damage",
)  # fmt: skip
UNKEPT = frozenset({"node", "keeper", "every node", "damage"})  # they take copies away
PEACEFUL = frozenset({"leave", "join", "drop", "coordinator", "damage"})
UNREACHED = frozenset({"partition", "head", "one-way"})  # and these make some unreachable, for a while
PLAIN = tuple(one for one in POINTS if one != "action" and one not in CHANGE)
WHEN = {"evaluation": (4, 4), "copy": (1, 5), "digest": (1, 3), "checkpoint": (2, 5), "manifest": (2, 5)}


def schedule(seed: int) -> Scenario:
    """The scenario of this seed."""
    rng = random.Random(seed)
    workers = rng.choice((1, 2, 2, 3, 3, 3, 4, 5))
    nodes = tuple(sorted(rng.choice("abcde"[:workers]) for _ in range(workers)))
    k = rng.randint(1, 8)
    recipe = Recipe(
        virtual_workers=k, kind=rng.choice(KINDS), scaled=rng.random() < 0.3,
        overflow=(ATTEMPT, k - 1) if rng.random() < 0.2 else None, checkpoint_every=rng.choice((2, 3, 5)),
    )  # fmt: skip
    faults = [_fault(rng, workers, n) for n in range(rng.choice((1, 2, 2, 3)))]
    if any(one.kind not in PEACEFUL for one in faults):  # the only one left may be one that leaves: the run ends there
        faults = [one for one in faults if one.kind != "leave"] or [_fault(rng, 1, 0)]
    joins = sum(one.kind == "join" for one in faults)
    least = min(2, workers - sum(one.kind == "leave" for one in faults))  # nobody comes for one that leaves
    setting = Setting(
        recipe=recipe, nodes=nodes, fast=rng.random() < 0.15, chunks=rng.choice((1, 2, 3)),
        replace=rng.choice(("here", "here", "elsewhere")), min_workers=rng.choice((1, 1, max(1, least))),
        room=joins if rng.random() < 0.7 else 0, limit_s=3000.0,
    )  # fmt: skip
    exact = protected(setting, faults)
    # Where all who know of an attempt cannot be reached, others go on from before it, and come to the same.
    again = not exact or any(one.kind in UNREACHED for one in faults)
    return Scenario(
        f"seed-{seed}", setting, tuple(faults), seed, "equal" if exact else "unprotected", "random",
        f"{len(faults)} faults", again=again, all_happen=False,
    )  # fmt: skip


def _fault(rng: random.Random, workers: int, number: int) -> Fault:
    """Most of those in a change follow one that causes it; the others stand at a point that the worker comes to."""
    kind = rng.choice([one for one in FAULTS if (workers > 1 and number == 0) or one != "leave"])
    change = number > 0 and rng.random() < 0.4
    point = rng.choice(CHANGE if change else PLAIN)
    worker = rng.randrange(workers)
    return Fault(
        kind, point, ANYBODY if change or rng.random() < 0.3 else worker,
        None if change or rng.random() < 0.2 else rng.randint(*WHEN.get(point, (0, 5))), rng.randrange(3),
        strikes=rng.randrange(workers) if rng.random() < 0.3 else None,
        other=rng.choice([one for one in range(workers) if one != worker] or [worker]),
        lasts_s=rng.choice((1.0, 15.0, 40.0)), after=number if change else 0,
    )  # fmt: skip


def protected(setting: Setting, faults: Sequence[Fault]) -> bool:
    """Whether an exact copy of everything is left whatever the order of these faults: where keepers lose nothing."""
    gone = UNKEPT | UNREACHED if setting.fast else UNKEPT
    return not any(one.kind in gone for one in faults)
