"""The next view and the flush before it, drawn up from what survivors and keepers reported. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from elastic_dgc.errors import ProtocolError
from elastic_dgc.membership.control import Inventory, Plan, Report
from elastic_dgc.membership.flush import closing, flush_plan, holders
from elastic_dgc.membership.recovery import RestartPoint, Saved, restart_point, sources
from elastic_dgc.membership.roster import View, Worker, rehost
from elastic_dgc.membership.settings import CoordinatorSettings


@dataclass(frozen=True)
class Draft:
    """What is to be flushed, and the view that is installed after it. `restart`: nobody had the state any more."""

    plan: Plan
    view: View
    restart: RestartPoint | None = None


def draft(
    settings: CoordinatorSettings,
    view_before: View | None,
    reports: Mapping[str, Report],
    inventories: Mapping[str, Inventory],
    checkpoints: Sequence[Saved],
    workers: Sequence[Worker],
    *,
    number: int,
    incarnation: int,
    ending: bool,
) -> Draft:
    """The view `number` of these workers, who must have room for all virtual workers unless it is an `ending` one.

    `reports` by uid, from all survivors; `inventories` by node, from the keepers that answered. Raises `ProtocolError`
    where the workers are too few or the reports contradict the protocol.
    """
    kept = [inventories[node] for node in sorted(inventories)]
    restart = _restart(settings, view_before, reports, kept, checkpoints)
    told = list(reports.values()) if restart is None else []
    owners = holders(told, view_before, settings.virtual_workers)
    uids = {one.uid for one in workers}
    before = {k: uid for k, uid in _hosts_of(view_before).items() if uid in uids}
    before |= {k: uid for k, uid in owners.items() if uid in uids}
    roomy = [replace(one, capacity=settings.virtual_workers) for one in workers] if ending else workers
    hosts = rehost(settings.virtual_workers, roomy, before)
    if hosts is None:
        raise ProtocolError(f"{len(workers)} workers have no room for {settings.virtual_workers} virtual workers")
    plan = flush_plan(
        told, kept, view_before, workers, hosts, settings.virtual_workers, number, incarnation,
        restart_at=restart.closed_at if restart is not None else None,
    )  # fmt: skip
    places = {
        k: sources(k, plan.closed_at, kept, view_before, checkpoints, not settings.exact)
        for k in range(settings.virtual_workers)
        if k not in owners
    }
    # Whoever comes late to a boundary has done none of what is due there.
    stage = min((one.stage if one.decided == plan.closed_at else 0 for one in told), default=0)
    return Draft(plan, View(number, tuple(workers), hosts, plan.closed_at, places, ending, stage), restart)


def _restart(
    settings: CoordinatorSettings,
    view: View | None,
    reports: Mapping[str, Report],
    inventories: Sequence[Inventory],
    checkpoints: Sequence[Saved],
) -> RestartPoint | None:
    """Where to begin again, None where survivors know. Survivors who have no owned state, as spares or because they
    still wait for it, may know less than the keepers of those who were lost."""
    if view is None:
        return restart_point(inventories, checkpoints, settings.virtual_workers, 0)
    if any(one.hosted for one in reports.values()):
        return None
    point = restart_point(inventories, checkpoints, settings.virtual_workers, view.closed_at)
    return None if reports and closing(list(reports.values()), inventories, view)[0] >= point.closed_at else point


def _hosts_of(view: View | None) -> dict[int, str]:
    return {k: view.workers[host].uid for k, host in enumerate(view.hosts)} if view is not None else {}
