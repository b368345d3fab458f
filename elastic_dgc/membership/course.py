"""What the coordinator decides: who is lost, when a change of view begins, when the run pauses, stops or is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from elastic_dgc.errors import ProtocolError
from elastic_dgc.membership.actions import (
    Action,
    Announcement,
    CancelTimer,
    Finished,
    Persist,
    Say,
    Send,
    SetTimer,
    keeper_address,
)
from elastic_dgc.membership.change import Changes, Stage
from elastic_dgc.membership.control import Install, Out, Pending, Stop
from elastic_dgc.membership.crew import Crew
from elastic_dgc.membership.limits import Limits
from elastic_dgc.membership.presence import Presence
from elastic_dgc.membership.records import Death, Record, Records
from elastic_dgc.membership.recovery import Saved
from elastic_dgc.membership.rehosting import Rehosting
from elastic_dgc.membership.settings import CoordinatorSettings

DEATHS = 3  # in the forward pass of one attempt and virtual worker: so many stop the run
PAUSE = "pause"
Samples = Callable[[int, int], str]  # (attempt, virtual worker): its samples, in a few words


class Course:
    """The coordinator's parts, and the decisions that concern several of them. `actions` is what is to be done."""

    def __init__(
        self, settings: CoordinatorSettings, limits: Limits, records: Sequence[Record], samples: Samples
    ) -> None:
        self.settings = settings
        self.samples = samples
        self.limits = limits
        self.actions: list[Action] = []
        self.records = Records(records)
        self.crew = Crew(settings, self.records)
        self.presence = Presence(limits, self.emit)
        self.rehosting = Rehosting(settings, limits, self.records, self.emit)
        self.changes = Changes(settings, limits, self.records, self.crew, self.emit)
        self.checkpoints: set[Saved] = set()
        self.stopping = ""  # why the run is to save and stop
        self.deserted = ""  # the same, where all leave: not if others come before they have saved
        self.over = ""  # why it is over
        self.asked: set[str] = set()  # keepers that were asked what they hold for the present view, and are there since
        self._pausing = False
        self._announced = 0

    def emit(self, action: Action) -> None:
        self.actions.append(action)

    def drain(self) -> list[Action]:
        """What is to be done now, and not again."""
        actions, self.actions = self.actions, []
        return actions

    def send(self, to: str, message: Announcement) -> None:
        self.emit(Send(to, message))

    def persist(self, record: Record) -> None:
        self.records.add(record)
        self.emit(Persist(record))

    @property
    def incarnation(self) -> int:
        return self.records.incarnation

    def member(self, uid: str) -> bool:
        return uid in self.crew.members

    def part(self, uid: str) -> bool:
        """Whether it is in the view, or in the one that is being made."""
        return self.member(uid) or (self.changes.open is not None and uid in self.changes.open.next)

    def out(self, uid: str) -> None:
        """It is in no view, and may come back only as a newcomer."""
        self.send(uid, Out(self.incarnation, self.records.number))

    # --- changes of view

    def begin(self, why: str, removed: Sequence[str] = ()) -> None:
        """A change of view, without those who are removed; whatever was open begins again."""
        self.presence.interrupted()
        self.rehosting.interrupted()
        self.asked = set(self.crew.keepers)
        for uid in removed:
            self.crew.remove(uid)
            self.presence.forget(uid)
        self.changes.begin(why, removed)
        if not self.crew.lacking():
            self._resumed()
        self.advance()

    def lose(self, losses: Mapping[str, str]) -> None:
        """These workers are lost, each for its reason. Who waited outside the view is simply forgotten."""
        lost = {uid: reason for uid, reason in losses.items() if uid in self.crew.known or self.part(uid)}
        removed = [uid for uid in lost if self.part(uid)]
        poisoned: tuple[int, int] | None = None
        for uid, reason in lost.items():
            self.emit(Say("warning", f"worker {uid} is lost{self.presence.doing(uid)}: {reason}"))
            place = self.presence.forward(uid)
            if place is not None and self.member(uid):
                self.persist(Death(uid, *place))
                if self.records.deaths(*place) >= DEATHS:
                    poisoned = place
            if uid not in removed:
                self.crew.remove(uid)
                self.presence.forget(uid)
        if poisoned is not None:
            where, named = f"attempt {poisoned[0]}, virtual worker {poisoned[1]}", self.samples(*poisoned)
            self.stop(
                f"{DEATHS} workers died in the forward pass of {where}: its samples{f' ({named})' if named else ''} "
                f"or the code that runs on them end the process"
            )
        elif removed:
            self.begin(f"lost: {', '.join(removed)}", removed)

    def advance(self) -> None:
        """Take the open change as far as what is known allows."""
        if apart := self.changes.apart():
            for uid in apart:
                text = f"worker {uid} is removed: some cannot reach each other, and it reaches fewest"
                self.emit(Say("warning", text))
            self.begin(f"no way to: {', '.join(apart)}", apart)
        elif self.changes.complete:
            self.flush()
        elif self.changes.acknowledged:
            self._install()

    def flush(self) -> None:
        """Reports are complete: on to the next view, or a pause where workers are too few."""
        survivors, crew = self.records.survivors, self.crew
        if self.stopping and not survivors:
            self.finish(self.stopping)
            return
        self.deserted = ""
        if survivors and not crew.staying and not crew.joining:
            self.deserted = f"all workers leave ({'; '.join(sorted(set(crew.leaving.values())))})"
        view = self.records.view
        ending = bool(survivors) and (bool(self.stopping or self.deserted) or (view is not None and view.ending))
        if not ending and (reason := crew.lacking()):
            self.pause(reason)
            return
        workers = survivors if ending else (*crew.staying, *crew.joining)
        self._resumed()
        fitting = [one for one in self.checkpoints if self.records.fits(one.view, one.attempt)]
        try:
            self.changes.flush(workers, sorted(fitting), ending)
        except ProtocolError as error:
            self.stop(str(error))

    def _install(self) -> None:
        view = self.changes.install()
        for uid in [*self.crew.leaving]:
            if uid not in view.uids:
                self.presence.forget(uid)
        self.crew.arrived()
        self.rehosting.installed(view)
        self.emit(Say("info", f"view {view.number}: {len(view.workers)} workers go on at attempt {view.closed_at}"))
        self.announce()

    def announce(self) -> None:
        """Have the next vote say that a change is wanted, once for each view."""
        view = self.records.view
        if view is None or view.ending or self.changes.open is not None or self._announced == view.number:
            return
        if self.stopping or self.crew.wanted():
            self._announced = view.number
            for uid in self.crew.members:
                self.send(uid, Pending(self.incarnation, view.number))

    # --- keepers

    def keeper_there(self, node: str) -> None:
        """It is asked what it holds where a change is open, or where an exact copy is being waited for."""
        self.crew.keepers.add(node)
        self.presence.heard(keeper_address(node))
        view = self.records.view
        if self.changes.open is not None:
            if self.changes.keeper_came(node):
                self.asked.add(node)
        elif view is not None:
            self.send(keeper_address(node), Install(self.incarnation, view))
            if self.rehosting.stuck:
                self.begin(f"the keeper of node {node} is there, perhaps with what is waited for")

    def look_again(self) -> None:
        """An exact copy is being waited for: have all keepers been asked that are there?"""
        waiting = self.rehosting.stuck and self.changes.open is None
        if waiting and (unasked := sorted(self.crew.keepers - self.asked)):
            self.begin(f"the keepers of {', '.join(unasked)} were not asked, and perhaps have what is waited for")

    def unasked(self, node: str) -> None:
        """What this keeper holds came too late to be used for the present view, or it was never asked."""
        if self.changes.open is None:
            self.asked.discard(node)
            self.look_again()

    def keeper_lost(self, node: str, reason: str) -> None:
        if node in self.crew.keepers:
            self.crew.keepers.discard(node)
            self.asked.discard(node)
            self.presence.forget(keeper_address(node))
            self.emit(Say("warning", f"the keeper of node {node} is lost, with the copies that it held: {reason}"))
            self.changes.pass_over(node)
            self.advance()

    # --- pauses and ends

    def pause(self, reason: str) -> None:
        """Too few workers: survivors wait, holding what they have, for a stated time. Also before the first view."""
        until = f"{reason}: waiting for more, for up to {self.limits.pause_s:g} s"
        self.emit(Say("warning", until))
        if self.changes.open is not None:
            self.changes.pause(until)
        if not self._pausing:
            self._pausing = True
            self.emit(SetTimer(PAUSE, self.limits.pause_s))

    def _resumed(self) -> None:
        if self._pausing:
            self._pausing = False
            self.emit(CancelTimer(PAUSE))

    def paused_for_long(self) -> None:
        """Survivors save what they have and stop; where there are none, keepers keep it."""
        if not self._pausing:
            return
        self._pausing = False
        if not self.crew.lacking():
            return
        self.stopping = f"{self.crew.lacking()} after {self.limits.pause_s:g} s of waiting for more"
        change = self.changes.open
        if change is None or not change.survivors:
            self.finish(self.stopping)
        elif change.stage is Stage.PAUSED:
            self.flush()

    def request_stop(self, reason: str) -> None:
        """Save at the next boundary and stop."""
        self.stopping = self.stopping or reason
        change = self.changes.open
        if self.records.view is None:
            self.finish(self.stopping)
        elif change is not None and change.stage is Stage.PAUSED:
            self.flush()
        else:
            self.announce()

    def stop(self, reason: str) -> None:
        """End the run for all, without another word to storage."""
        self.emit(Say("error", reason))
        self._tell_all(reason, [*self.crew.members, *self.crew.waiting])

    def finish(self, reason: str) -> None:
        """The run is over. Members end by themselves, unless a change of view keeps them waiting."""
        kept = self.crew.members if self.changes.open is not None else ()
        self._tell_all(reason, [*kept, *self.crew.waiting])

    def _tell_all(self, reason: str, uids: Sequence[str]) -> None:
        for uid in dict.fromkeys(uids):
            self.send(uid, Stop(self.incarnation, reason))
        self.over = reason
        self.emit(Finished(reason))
