"""What must be true at the end of every scenario, each as a function from a world to what is wrong with it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from elastic_dgc.errors import ElasticDGCError
from elastic_dgc.keeping import serialize
from elastic_dgc.protocol.packing import load_owned
from elastic_dgc.simulation.digest import bytes_digest, owned_digest, shared_digest
from elastic_dgc.simulation.reference import reference
from elastic_dgc.simulation.training import Training

if TYPE_CHECKING:
    from elastic_dgc.protocol.member import Member
    from elastic_dgc.simulation.world import World


def errors(world: World) -> list[str]:
    """No process ended by an error of its own."""
    return [
        f"{one.address}: {type(one.error).__name__}: {one.error}"
        for one in world.platform.workers
        if one.error is not None
    ]


def views(world: World, again: bool) -> list[str]:
    """Numbers ascend, and no view begins before the one before it did (unless the run had to begin again)."""
    wrong = []
    for before, after in zip(world.views, world.views[1:], strict=False):
        if after.number <= before.number:
            wrong.append(f"view {after.number} was persisted after view {before.number}")
        if after.closed_at < before.closed_at and not again:
            wrong.append(f"view {after.number} begins at {after.closed_at}, the one before at {before.closed_at}")
    return wrong


def one_outcome(world: World) -> list[str]:
    """Whoever goes on together decided each attempt alike: the same rows, the same messages, the same sums."""
    wrong = []
    done = {one.address for one in world.platform.workers if one.ended == "done"}
    for attempt, by_worker in sorted(world.watch.decisions.items()):
        decided_in = [one.view for one in world.watch.seen if one.attempt == attempt]
        later = [v for v in world.views if v.closed_at > attempt and v.number > max(decided_in, default=0)]
        together = set(later[0].uids) if later else done
        found = {by_worker[uid] for uid in together & by_worker.keys()}
        if len(found) > 1:
            wrong.append(f"attempt {attempt} was decided in {len(found)} ways by {sorted(together & by_worker.keys())}")
    return wrong


def every_attempt(world: World, again: bool) -> list[str]:
    """No worker decides an attempt twice, no attempt is left out; samples are used, or named as skipped."""
    wrong, recipe = [], world.setting.recipe
    undisturbed = reference(recipe)
    by_worker: dict[str, list[int]] = defaultdict(list)
    for one in world.watch.seen:
        by_worker[one.uid].append(one.attempt)
        skipped = undisturbed.skipped[one.attempt]
        named = [k for k in skipped if any(f"virtual worker {k}:" in reason for reason in one.reasons)]
        if one.committed != undisturbed.committed[one.attempt] or len(named) < len(skipped):
            wrong.append(f"{one.uid}: attempt {one.attempt}, committed: {one.committed}, reasons {one.reasons}")
    for uid, attempts in by_worker.items():
        if attempts != sorted(set(attempts)):
            wrong.append(f"{uid} decided attempts {attempts}")
    followed = {n for one in world.platform.workers if one.member is not None for n in one.member.followed}
    # A worker that is alone may end after its log has an attempt and before it could say so.
    missing = set(range(recipe.attempts)) - by_worker_all(by_worker) - followed - world.watch.decisions.keys()
    if missing:
        wrong.append(f"attempts {sorted(missing)} were decided by nobody")
    return wrong


def by_worker_all(by_worker: dict[str, list[int]]) -> set[int]:
    return {attempt for attempts in by_worker.values() for attempt in attempts}


def owners(world: World) -> list[str]:
    """One owner per virtual worker and view, at each attempt and at the end."""
    wrong = []
    hosted: dict[tuple[int, int], list[int]] = defaultdict(list)
    for one in world.watch.seen:
        hosted[one.view, one.attempt] += sorted(one.hosted)
    ends = [k for one in last(world) for k in one.replica.owned]
    for (view, attempt), everybody in [*hosted.items(), ((-1, -1), ends)]:
        if len(set(everybody)) < len(everybody):
            where = f"view {view}, attempt {attempt}" if view >= 0 else "the end"
            wrong.append(f"at {where} a virtual worker has two owners: {sorted(everybody)}")
    return wrong


def finished(world: World) -> list[Member]:
    """The members that came to the end of the run."""
    return [one.member for one in world.platform.workers if one.ended == "done" and one.member is not None]


def last(world: World) -> list[Member]:
    """Those who came to the end in the last view in which anybody did. Where no word of an earlier view's end had come
    through, its successors came to the end again, with what it left."""
    done = finished(world)
    newest = max((one.view.number for one in done), default=0)
    return [one for one in done if one.view.number == newest]


def agreed(world: World) -> list[str]:
    """Shared state is equal on all that go on together, after each attempt and at the end (R2)."""
    wrong = []
    done = {one.uid for one in finished(world)}
    digests: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for one in world.watch.seen:
        if one.uid in done:
            digests[one.attempt][one.digest].add(one.uid)
    for attempt, found in digests.items():
        if len(found) > 1:
            wrong.append(f"after attempt {attempt} shared state differs between {sorted(map(sorted, found.values()))}")
    ends = {shared_digest(one.replica) for one in finished(world)}
    if len(ends) > 1:
        wrong.append("shared state differs at the end")
    return wrong


def equal(world: World) -> list[str]:
    """Bit for bit the undisturbed run: shared state after every attempt, shared and owned state at the end."""
    wrong, undisturbed = [], reference(world.setting.recipe)
    for seen in world.watch.seen:
        if seen.digest != undisturbed.decided[seen.attempt + 1]:
            wrong.append(f"{seen.uid}: shared state differs after attempt {seen.attempt}")
    for one in finished(world):
        if shared_digest(one.replica) != undisturbed.left[one.decided]:
            wrong.append(f"{one.uid}: shared state differs at the end")
        for k, state in one.replica.owned.items():
            if owned_digest(state) != undisturbed.owned[one.decided][k]:
                wrong.append(f"virtual worker {k} at {one.uid}: owned state differs at the end")
    return wrong + [f"a replay came to {n} values that are not those of the log" for n in [_differences(world)] if n]


def _differences(world: World) -> int:
    found = [one for worker in world.platform.workers if worker.member for _, one in worker.member.recovered]
    return sum(one.differences for one in found)


def checkpoints(world: World, exact: bool, at: int | None) -> list[str]:
    """Each complete checkpoint has every part, and is that attempt of the undisturbed run; the last one is of the end
    (or of `at`), and can be loaded whole."""
    wrong, recipe, written = [], world.setting.recipe, world.durable.written
    if not written:
        return ["there is no checkpoint"]
    for view, attempt in written:
        parts = world.durable.parts(view, attempt)
        for name, digest in reference(recipe).saved[attempt].items():
            if name not in parts or (exact and bytes_digest(parts[name]) != digest):
                wrong.append(f"{name} of the checkpoint of view {view}, attempt {attempt} is not what was to be saved")
    view, last = max(written)
    if last != (recipe.attempts if at is None else at):
        wrong.append(f"the last checkpoint is of {last} attempts")
    try:
        fresh, parts = (
            Training(recipe, world.durable).replica(range(recipe.virtual_workers)),
            world.durable.parts(view, last),
        )
        fresh.load_shared(*serialize.unpack(parts["shared"]))
        tags = {load_owned(one, parts[f"owned-{k}"]) for k, one in fresh.owned.items()} | {fresh.counters.attempt}
    except ElasticDGCError as error:
        return [*wrong, f"the last checkpoint cannot be loaded: {error}"]
    if tags != {last}:
        wrong.append(f"the last checkpoint, of {last} attempts, has state of {sorted(tags)}")
    for one in finished(world):
        different = [k for k, state in one.replica.owned.items() if owned_digest(state) != owned_digest(fresh.owned[k])]
        if one.decided == last and (different or shared_digest(one.replica) != shared_digest(fresh)):
            wrong.append(f"{one.uid} is not what the last checkpoint has: {different or 'shared state'}")
    return wrong
