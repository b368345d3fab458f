"""The flush: what must move so that everybody of the next view is at the highest attempt that a survivor decided.

Pure: survivors' reports and keepers' inventories in, transfers out. A commit and a skip are brought along alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastic_dgc.errors import ProtocolError
from elastic_dgc.membership.actions import STORAGE, keeper_address
from elastic_dgc.membership.control import Inventory, Plan, Report, Transfer
from elastic_dgc.membership.recovery import shared_giver
from elastic_dgc.membership.roster import View, Worker


def closing(reports: Sequence[Report], inventories: Sequence[Inventory], view: View) -> tuple[int, str | None]:
    """The highest attempt count among the survivors of `view`, or of a log that a keeper has of one who was lost, and
    that keeper's address: what is in a log was decided, and may have been applied.

    Raises `ProtocolError` where somebody is further behind than one, which R9 rules out for all who host something (a
    spare is asked for nothing, and may lag).
    """
    highest = max(one.decided for one in reports)
    for one in reports:
        if one.decided < highest - 1 and view.hosted(one.uid):
            raise ProtocolError(
                f"worker {one.uid} has decided {one.decided} attempts and another one {highest}: "
                "more than one apart, so something of an attempt was freed before all had decided it"
            )
    ahead = [one.node for one in inventories if one.shared is not None and one.shared[1] == highest + 1]
    return (highest + 1, keeper_address(min(ahead))) if ahead else (highest, None)


def holders(reports: Sequence[Report], view: View | None, virtual_workers: int) -> dict[int, str]:
    """Who holds each virtual worker's owned state among those who reported: its host if it does, else whoever was
    handed it in a change that did not come to its end. Who is not in there is an orphan."""
    if view is None:
        return {}
    by_rank = sorted(reports, key=lambda one: view.rank(one.uid))
    found: dict[int, str] = {}
    for k in range(virtual_workers):
        host = view.workers[view.hosts[k]].uid
        holding = [one.uid for one in by_rank if k in one.hosted]
        if holding:
            found[k] = host if host in holding else holding[0]
    return found


def flush_plan(
    reports: Sequence[Report],
    inventories: Sequence[Inventory],
    view_before: View | None,
    workers_after: Sequence[Worker],
    hosts_after: Sequence[int],
    virtual_workers: int,
    number: int,
    incarnation: int,
    *,
    restart_at: int | None = None,
) -> Plan:
    """Everything that must move before the next view can be installed. Deterministic; ties go to the lowest rank.

    `reports`: of the survivors in `view_before`; without any, everybody begins at `restart_at`. `hosts_after`: the
    rank in `workers_after` of each virtual worker's host. Raises `ProtocolError` as `closing` does.
    """
    if view_before is None or not reports:
        reports, closed_at, keeper = (), restart_at or 0, None
    else:
        reports = sorted(reports, key=lambda one: view_before.rank(one.uid))
        closed_at, keeper = closing(reports, inventories, view_before)
    after = [one.uid for one in workers_after]
    ahead = [one for one in reports if one.decided == closed_at]
    # Whoever hosts nothing is asked for nothing, and may be anywhere: it is given shared state, as a newcomer is.
    lagging = [one.uid for one in reports if one.decided == closed_at - 1 and _hosts(one, view_before)]
    owners = holders(reports, view_before, virtual_workers)
    moves = {k: (owners.get(k), after[hosts_after[k]]) for k in range(virtual_workers)}

    giver = ahead[0].uid if ahead else keeper or ""
    transfers = [Transfer("entry", giver, uid, closed_at - 1) for uid in lagging]
    current = {one.uid for one in ahead} | set(lagging)
    shared, witness = _shared([uid for uid in after if uid not in current], ahead, lagging, inventories, closed_at)
    transfers += shared
    transfers += [
        Transfer("owned", owner, host, closed_at, k)
        for k, (owner, host) in moves.items()
        if owner is not None and owner != host
    ]
    # A host that stays sends its rows and messages again by itself. The others' are carried on by whoever has them.
    carried = [k for k, (owner, host) in moves.items() if owner != host]
    rows = {one.uid: one.rows for one in ahead}
    # Who has all rows is beyond the vote and will not send its own again: they are carried on like those of the lost.
    voted = any(len(one) == virtual_workers for one in rows.values())
    of = list(range(virtual_workers)) if voted else carried
    transfers += _open_attempt("row", rows, after, of, inventories, closed_at)
    transfers += _open_attempt(
        "message", {one.uid: one.messages for one in ahead}, after, carried, inventories, closed_at
    )
    return Plan(incarnation, number, closed_at, tuple(transfers), witness)


def _hosts(report: Report, view: View | None) -> bool:
    """Whether it has a part in attempts."""
    return bool(report.hosted) or (view is not None and bool(view.hosted(report.uid)))


def _shared(
    newcomers: Sequence[str],
    ahead: Sequence[Report],
    lagging: Sequence[str],
    inventories: Sequence[Inventory],
    closed_at: int,
) -> tuple[list[Transfer], Mapping[str, str]]:
    """Shared state for those who have none, and for each of them another one who can prove it."""
    able = [one.uid for one in ahead] + list(lagging)
    if able:
        sender, witness = able[0], able[1:2]
    elif closed_at == 0:
        return [], {}  # everybody makes it from the seed
    else:
        sender, witness = shared_giver(inventories, closed_at) or STORAGE, []
    moved = [Transfer("shared", sender, uid, closed_at) for uid in newcomers]
    return moved, {uid: other for uid in newcomers for other in witness}


def _open_attempt(
    what: str,
    having: Mapping[str, frozenset[int]],
    after: Sequence[str],
    carried: Sequence[int],
    inventories: Sequence[Inventory],
    attempt: int,
) -> list[Transfer]:
    """Rows or messages of the open attempt that nobody would send again, to all who lack them."""
    moved = []
    for k in carried:
        senders = [uid for uid, held in having.items() if k in held]
        senders += [
            keeper_address(one.node)
            for one in inventories
            for held in one.held
            if what == "message" and held.virtual_worker == k and held.message == attempt and not held.rolling
        ]
        if senders:
            moved += [
                Transfer(what, senders[0], uid, attempt, k) for uid in after if k not in having.get(uid, frozenset())
            ]
    return moved
