"""A change of view from the fence to the install: the only way in which membership changes.

Fence and persist the number, gather reports and inventories, flush, install. Whatever is lost on the way, it begins
again with a higher number; each of its steps can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from elastic_dgc.errors import ProtocolError
from elastic_dgc.membership.actions import (
    Action,
    Announcement,
    CancelTimer,
    End,
    Persist,
    Say,
    Send,
    SetTimer,
    keeper_address,
    keeper_node,
)
from elastic_dgc.membership.control import Fence, Flushed, Install, Inventory, Paused, Report
from elastic_dgc.membership.crew import Crew
from elastic_dgc.membership.draft import Draft, draft
from elastic_dgc.membership.limits import Limits
from elastic_dgc.membership.records import Fenced, Records
from elastic_dgc.membership.recovery import Saved
from elastic_dgc.membership.roster import View, Worker
from elastic_dgc.membership.settings import CoordinatorSettings
from elastic_dgc.membership.suspicion import removed_for_reach

REPORT = "report"
INVENTORY = "inventory"
FLUSH = "flush"


class Stage(Enum):
    REPORTING = "reporting"
    PAUSED = "paused"  # reports are complete, workers are too few
    FLUSHING = "flushing"


@dataclass
class Change:
    """An open change. `awaited`: nodes whose keepers have not answered; they are passed over in time."""

    number: int
    survivors: tuple[Worker, ...]
    awaited: set[str]
    stage: Stage = Stage.REPORTING
    reports: dict[str, Report] = field(default_factory=dict)
    inventories: dict[str, Inventory] = field(default_factory=dict)
    draft: Draft | None = None
    flushed: set[str] = field(default_factory=set)

    @property
    def unreported(self) -> tuple[str, ...]:
        return tuple(one.uid for one in self.survivors if one.uid not in self.reports)

    @property
    def next(self) -> tuple[str, ...]:
        """The workers of the next view, once the flush has begun."""
        return self.draft.view.uids if self.draft is not None else ()

    @property
    def unflushed(self) -> tuple[str, ...]:
        return tuple(uid for uid in self.next if uid not in self.flushed)

    def fence(self, records: Records) -> Fence:
        return Fence(records.incarnation, self.number, self.survivors, records.fenced_out)


class Changes:
    """Makes the changes of view, one at a time. `open` is the present one, None while training runs undisturbed.

    Emits actions; who is lost, who waits and when the run ends is for the coordinator to say.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        limits: Limits,
        records: Records,
        crew: Crew,
        emit: Callable[[Action], None],
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._records = records
        self._crew = crew
        self._emit = emit
        self.open: Change | None = None

    def send(self, to: Sequence[str], message: Announcement) -> None:
        for uid in to:
            self._emit(Send(uid, message))

    def begin(self, why: str, removed: Sequence[str] = ()) -> None:
        """Fence with the next number and ask for reports, whatever was open before."""
        records, crew = self._records, self._crew
        number = records.number + 1
        joining, leaving = tuple(one.uid for one in crew.joining), tuple(crew.leaving)
        record = Fenced(records.incarnation, number, tuple(removed), joining, leaving)
        records.add(record)
        self._emit(Persist(record))
        for uid in removed:
            self._emit(End(uid))
        self._emit(Say("info", f"view {number} begins: {why}"))
        if self.open is not None and self.open.stage is Stage.FLUSHING:
            self._emit(CancelTimer(FLUSH))
        self.open = Change(number, records.survivors, set(crew.keepers))
        self.send([one.uid for one in self.open.survivors], self.open.fence(records))
        self.send([keeper_address(node) for node in sorted(crew.keepers)], self.open.fence(records))
        self._emit(SetTimer(REPORT, self._limits.report_s) if self.open.survivors else CancelTimer(REPORT))
        self._emit(SetTimer(INVENTORY, self._limits.reach_s) if crew.keepers else CancelTimer(INVENTORY))

    def keeper_came(self, node: str) -> bool:
        """A keeper that comes while reports are gathered is asked too. Returns whether it was."""
        change = self.open
        if change is None or change.stage is not Stage.REPORTING:
            return False
        change.awaited.add(node)
        self.send([keeper_address(node)], change.fence(self._records))
        self._emit(SetTimer(INVENTORY, self._limits.reach_s))
        return True

    def report(self, report: Report) -> None:
        change = self.open
        if change is None or report.number != change.number or report.uid not in change.unreported:
            return
        change.reports[report.uid] = report
        if not change.unreported:
            self._emit(CancelTimer(REPORT))

    def inventory(self, inventory: Inventory) -> bool:
        """Returns whether it came in time to be used."""
        change = self.open
        if change is None or inventory.number != change.number or change.stage is not Stage.REPORTING:
            return False
        change.inventories[inventory.node] = inventory
        self.pass_over(inventory.node)
        return True

    def pass_over(self, node: str | None = None) -> None:
        """Wait no longer for this keeper, or for any."""
        change = self.open
        if change is None or not change.awaited:
            return
        change.awaited = change.awaited - {node} if node is not None else set()
        if not change.awaited:
            self._emit(CancelTimer(INVENTORY))

    @property
    def complete(self) -> bool:
        """Whether all is told that will be."""
        change = self.open
        return change is not None and change.stage is Stage.REPORTING and not change.unreported and not change.awaited

    def apart(self) -> tuple[str, ...]:
        """Survivors that must go because some cannot reach each other; none before all have reported."""
        change = self.open
        if change is None or change.stage is not Stage.REPORTING or change.unreported:
            return ()
        reachable = {uid: one.reachable for uid, one in change.reports.items()}
        return removed_for_reach([one.uid for one in change.survivors], reachable)

    def pause(self, reason: str) -> None:
        change = self.open
        assert change is not None
        change.stage = Stage.PAUSED
        self.send([one.uid for one in change.survivors], Paused(self._records.incarnation, reason))

    def flush(self, workers: Sequence[Worker], checkpoints: Sequence[Saved], ending: bool) -> None:
        """Draw up the next view of these workers and send the plan. Raises `ProtocolError` where reports make no
        sense."""
        change = self.open
        assert change is not None
        change.draft = draft(
            self._settings, self._records.view, change.reports, change.inventories, checkpoints, workers,
            number=change.number, incarnation=self._records.incarnation, ending=ending,
        )  # fmt: skip
        change.stage = Stage.FLUSHING
        self._tell(change.draft)
        plan = change.draft.plan
        giving = sorted({one.sender for one in plan.transfers if keeper_node(one.sender) is not None})
        # Whoever leaves with nothing to hand over has no part in it, wherever it is, and waits for the install.
        parts = {uid for one in plan.transfers for uid in (one.sender, one.to)}
        going = [one.uid for one in change.survivors if one.uid not in change.next and one.uid in parts]
        self.send([*change.next, *going, *giving], plan)
        self._emit(SetTimer(FLUSH, self._limits.flush_s))

    def _tell(self, made: Draft) -> None:
        if made.restart is not None and self._records.view is not None:
            point = made.restart
            text = f"no worker survived: going on at attempt {point.closed_at} with {point.shared or 'the seed alone'}"
            lost = f"; {point.behind} attempts that were decided are trained again" if point.behind else ""
            self._emit(Say("warning" if point.behind else "info", text + lost))

    def flushed(self, message: Flushed) -> None:
        """Raises `ProtocolError` on an acknowledgement of another attempt than the plan's."""
        change = self.open
        if change is None or change.draft is None or message.number != change.number:
            return
        if message.closed_at != change.draft.plan.closed_at:
            raise ProtocolError(
                f"worker {message.uid} flushed to {message.closed_at}, view {change.number} to "
                f"{change.draft.plan.closed_at}"
            )
        change.flushed.add(message.uid)

    @property
    def acknowledged(self) -> bool:
        change = self.open
        return change is not None and change.draft is not None and not change.unflushed

    def install(self) -> View:
        """Persist the view and announce it to its workers, to those who are out, and to the keepers."""
        change, records = self.open, self._records
        assert change is not None
        assert change.draft is not None
        view = change.draft.view
        records.add(view)
        self._emit(Persist(view))
        self._emit(CancelTimer(FLUSH))
        out = [one.uid for one in change.survivors if one.uid not in view.uids]
        keepers = [keeper_address(node) for node in sorted(self._crew.keepers)]
        self.open = None
        self.send([*view.uids, *out, *keepers], Install(records.incarnation, view))
        return view

    def again(self, uid: str) -> None:
        """Say once more what this worker has not answered: it may not have heard it."""
        change = self.open
        assert change is not None
        if uid in change.unreported:
            self.send([uid], change.fence(self._records))
        elif change.draft is not None and uid in change.unflushed:
            self.send([uid], change.draft.plan)
