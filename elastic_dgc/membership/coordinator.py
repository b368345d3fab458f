"""The coordinator: the only writer of views, as a state machine. Events in, actions out; no clock and no I/O.

It is not on the path of a step. Whoever drives it (an actor, or a simulation in virtual time) executes what it
returns in order, and calls it back with messages, timers and what the platform saw.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastic_dgc.errors import ProtocolError
from elastic_dgc.membership.actions import Action, Say, keeper_address, keeper_node
from elastic_dgc.membership.change import FLUSH, INVENTORY, REPORT, Stage
from elastic_dgc.membership.control import Beat, Install, Poll
from elastic_dgc.membership.course import PAUSE, Course, Samples
from elastic_dgc.membership.limits import Limits
from elastic_dgc.membership.presence import BEAT, CONFIRM, PHASE
from elastic_dgc.membership.receiving import Message, Receiver
from elastic_dgc.membership.records import Record, Started
from elastic_dgc.membership.recovery import Saved
from elastic_dgc.membership.rehosting import EXACT, REHOST
from elastic_dgc.membership.settings import CoordinatorSettings


class Coordinator:
    """Made from the records of all coordinators of the run before it, oldest first.

    Each method returns what is to be done, in order. Call `keeper_there` and `checkpoint_written` for what is known
    already, then `start`, then anything in any order. After `Finished` whoever is still there is told to stop.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        limits: Limits,
        records: Sequence[Record] = (),
        samples: Samples = lambda attempt, virtual_worker: "",
    ) -> None:
        """`samples(attempt, virtual_worker)` names the samples of a forward pass for people, in a few words."""
        self._course = Course(settings, limits, records, samples)
        self._receiver = Receiver(self._course)

    @property
    def incarnation(self) -> int:
        """Of this coordinator, once it has taken over."""
        return self._course.incarnation

    def start(self) -> list[Action]:
        """Take over: a new incarnation. A change that was open begins again; else training is not disturbed."""
        course, records, opened = self._course, self._course.records, self._course.records.open
        course.persist(Started(records.incarnation + 1))
        for uid in course.crew.members:
            course.presence.heard(uid)
        if opened is not None:
            course.crew.leaving = {uid: "asked for before" for uid in opened.leaving if course.member(uid)}
            for uid in opened.joining:
                if uid not in records.gone:
                    course.send(uid, Poll(course.incarnation))
        if records.view is not None and opened is not None:
            course.begin("what was open begins again")
        elif records.view is not None:
            keepers = [keeper_address(node) for node in sorted(course.crew.keepers)]
            for to in (*course.crew.members, *keepers):  # it may have been persisted and never announced
                course.send(to, Install(course.incarnation, records.view))
            for uid in course.crew.members:
                course.send(uid, Poll(course.incarnation))
        return course.drain()

    def handle(self, message: Message) -> list[Action]:
        """A message of a worker or keeper. Raises `ProtocolError` on a value that is no message."""
        self._receiver.receive(message)
        return self._course.drain()

    def timer(self, name: str) -> list[Action]:
        """A timer passed. Raises `ProtocolError` on one that was never set."""
        if not self._course.over:
            self._passed(name)
        return self._course.drain()

    def died(self, uid: str, last: Beat | None = None) -> list[Action]:
        """The platform saw this process end, which is evidence enough. `last`: what it was doing, where its keeper
        knows; its heartbeats may be too few to tell."""
        if not self._course.over:
            if last is not None and self._course.member(uid):
                self._course.presence.told(last)
            self._course.lose({uid: "its process ended"})
        return self._course.drain()

    def keeper_there(self, node: str) -> list[Action]:
        """A node's keeper is there, for the first time or again."""
        if not self._course.over:
            self._course.keeper_there(node)
        return self._course.drain()

    def keeper_died(self, node: str) -> list[Action]:
        """The platform saw a node's keeper end."""
        if not self._course.over:
            self._course.keeper_lost(node, "its process ended")
        return self._course.drain()

    def checkpoint_written(self, view: int, attempt: int) -> list[Action]:
        """A durable checkpoint is complete, with its manifest."""
        self._course.checkpoints.add(Saved(view, attempt))
        return self._course.drain()

    def request_stop(self, reason: str) -> list[Action]:
        """Somebody wants the run to save and stop."""
        if not self._course.over:
            self._course.request_stop(reason)
        return self._course.drain()

    def _passed(self, name: str) -> None:
        course, limits = self._course, self._course.limits
        kind, _, whose = name.partition(":")
        change, silent = course.changes.open, f"no heartbeat for {limits.silent_s:g} s"
        if kind == BEAT and (node := keeper_node(whose)) is not None:
            course.keeper_lost(node, silent)
        elif kind == BEAT:
            course.lose({whose: silent})
        elif kind == PHASE:
            if change is not None and change.stage is Stage.PAUSED:
                return  # it waits because it was told to
            course.lose({whose: "it hangs there: the limit of this phase has passed"})
        elif kind == CONFIRM:
            course.lose({whose: f"a peer suspects it, and it gave no answer within {limits.confirm_s:g} s"})
        elif kind == REPORT:
            course.lose(dict.fromkeys(change.unreported if change else (), f"no report within {limits.report_s:g} s"))
        elif kind == FLUSH:
            course.lose(dict.fromkeys(change.unflushed if change else (), f"not flushed within {limits.flush_s:g} s"))
        elif kind == INVENTORY:
            course.changes.pass_over()
            course.advance()
        elif kind == PAUSE:
            course.paused_for_long()
        elif kind == REHOST:
            self._not_hosted(int(whose))
        elif kind == EXACT:
            self._waited_for_exact(int(whose))
        else:
            raise ProtocolError(f"a timer '{name}' passed that the coordinator never set")

    def _not_hosted(self, virtual_worker: int) -> None:
        course, view = self._course, self._course.records.view
        if view is not None and course.changes.open is None:
            host = view.workers[view.hosts[virtual_worker]].uid
            waited = f"virtual worker {virtual_worker} was not there after {course.limits.rehost_s:g} s"
            course.lose({host: waited})

    def _waited_for_exact(self, virtual_worker: int) -> None:
        course = self._course
        if not course.rehosting.waited(virtual_worker):
            return
        lost = f"no exact copy of virtual worker {virtual_worker} came back in {course.limits.exact_wait_s:g} s"
        if course.settings.strict:
            course.stop(f"{lost}, and strict = True takes no other")
            return
        course.emit(Say("warning", f"{lost}: an inexact one is taken"))
        if course.changes.open is None:
            course.rehosting.allow(virtual_worker, course.incarnation)
