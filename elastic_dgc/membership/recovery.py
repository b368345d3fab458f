"""Where lost state comes from: the places to take an orphan's owned state from, and where to begin if nobody survives.

Pure. An attempt count a means: attempts 0 to a-1 are decided. A copy with tag a is the state at a.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elastic_dgc.membership.actions import STORAGE, keeper_address
from elastic_dgc.membership.control import Held, Inventory
from elastic_dgc.membership.roster import Source, Tier, View


@dataclass(frozen=True, order=True)
class Saved:
    """A durable checkpoint with its manifest: the newest is the highest (view, attempt)."""

    view: int
    attempt: int


@dataclass(frozen=True)
class RestartPoint:
    """Where a run goes on when nobody survived. `shared`: who gives shared state at `closed_at` ('keeper:<node>',
    'storage', '' for that of the seed). `behind`: attempts that are known to have been decided and are trained
    again, at least."""

    closed_at: int
    shared: str = ""
    behind: int = 0


def sources(
    virtual_worker: int,
    closed_at: int,
    inventories: Sequence[Inventory],
    view_before: View | None,
    checkpoints: Iterable[Saved],
    fast: bool,
) -> tuple[Source, ...]:
    """The places to take an orphan's state at `closed_at` from, best first; the inexact ones last, nothing being ZERO.

    `checkpoints` must be of this run's one history. `fast`: nothing is replayed. Copies that are too new are left
    out: what they hold was never applied.
    """
    home = _home(virtual_worker, view_before)
    copies = sorted(_copies(virtual_worker, inventories), key=lambda one: (-one[1].tag, one[0] != home, one[0]))
    keepers = [(node, held) for node, held in copies if not held.rolling]
    saved = sorted((one for one in checkpoints if one.attempt <= closed_at), key=lambda one: (-one.attempt, -one.view))

    exact = [Source(Tier.KEEPER, node, held.tag) for node, held in keepers if held.tag == closed_at]
    exact += [Source(Tier.KEEPER, node, held.tag) for node, held in keepers if held.tag == closed_at - 1]
    exact += [Source(Tier.CHECKPOINT, "", one.attempt) for one in saved if one.attempt == closed_at][:1]
    if not fast:
        exact += [Source(Tier.KEEPER, node, held.tag) for node, held in keepers if held.tag < closed_at - 1]
        exact += [Source(Tier.BUDDY, node, held.tag, rolling=True) for node, held in copies if held.rolling]
    if closed_at == 0:
        return (*exact, Source(Tier.INITIAL))
    stale = [
        Source(Tier.STALE, node, held.tag, rolling=held.rolling)
        for node, held in copies
        if held.tag < closed_at or held.rolling
    ]
    stale += [Source(Tier.STALE, "", one.attempt) for one in saved if one.attempt < closed_at]
    stale.sort(key=lambda one: -one.tag)
    return (*exact, *stale, Source(Tier.ZERO))


def restart_point(
    inventories: Sequence[Inventory], checkpoints: Iterable[Saved], virtual_workers: int, view_closed_at: int
) -> RestartPoint:
    """The highest attempt for which everything exists: shared state, and each virtual worker's owned state.

    Where keepers have everything and are apart by one at most, one attempt more is not worth a long replay.
    `view_closed_at`: where the last view began; what is below it is lost and `behind` says so.
    """
    whole = max(checkpoints, default=None)
    floor = whole.attempt if whole is not None else 0
    ready, replayed = (_highest(inventories, virtual_workers, replay) for replay in (False, True))
    best = replayed if replayed > ready + 1 else ready
    if best >= floor and (giver := shared_giver(inventories, best)) is not None:
        closed_at, shared = best, giver
    else:
        closed_at, shared = floor, STORAGE if whole is not None else ""
    return RestartPoint(closed_at, shared, max(0, view_closed_at - closed_at))


def shared_giver(inventories: Sequence[Inventory], attempt: int) -> str | None:
    """The keeper that gives shared state at this attempt from the nearest snapshot, None where no keeper can."""
    able = [
        (attempt - one.shared[0], one.node)
        for one in inventories
        if one.shared is not None and one.shared[0] <= attempt <= one.shared[1]
    ]
    return keeper_address(min(able)[1]) if able else None


def _highest(inventories: Sequence[Inventory], virtual_workers: int, replay: bool) -> int:
    """The highest attempt that all keepers together have everything for, -1 without one."""
    copies = {k: [held for _, held in _copies(k, inventories)] for k in range(virtual_workers)}
    ends = {one.shared[1] for one in inventories if one.shared is not None}
    tags = {held.tag for several in copies.values() for held in several}
    for attempt in sorted(ends | tags, reverse=True):
        if attempt >= 0 and shared_giver(inventories, attempt) is not None:
            logged = [one.shared[0] for one in inventories if one.shared is not None and attempt <= one.shared[1]]
            if all(any(_there(held, attempt, logged, replay) for held in copies[k]) for k in copies):
                return attempt
    return -1


def _there(held: Held, attempt: int, logged: Sequence[int], replay: bool) -> bool:
    """Whether this copy gives the state at `attempt`, with a log from one of `logged` on."""
    if held.rolling:  # its oldest chunk may be older than the tag that is told: whoever replays finds out
        return replay and any(low <= min(held.tag, attempt) for low in logged)
    if held.tag == attempt:
        return True
    near = attempt - 1 if not replay else 0
    return near <= held.tag < attempt and any(low <= held.tag for low in logged)


def _copies(virtual_worker: int, inventories: Sequence[Inventory]) -> list[tuple[str, Held]]:
    return [(one.node, held) for one in inventories for held in one.held if held.virtual_worker == virtual_worker]


def _home(virtual_worker: int, view: View | None) -> str | None:
    return view.workers[view.hosts[virtual_worker]].node if view is not None else None
