"""What the coordinator makes of what workers and keepers tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elastic_dgc.errors import ProtocolError
from elastic_dgc.membership.actions import Say, keeper_node
from elastic_dgc.membership.change import Stage
from elastic_dgc.membership.control import (
    Beat,
    BeatSeen,
    Boundary,
    Done,
    Flushed,
    Hello,
    Hosted,
    Install,
    Inventory,
    Leave,
    Poll,
    Report,
    Stop,
    Stuck,
    Suspect,
)
from elastic_dgc.membership.course import Course

Message = Hello | Beat | Suspect | Boundary | Leave | Report | Inventory | Flushed | Hosted | Stuck | Done


class Receiver:
    """Turns messages into decisions of the `Course`. Those that are late, doubled or of a stranger change nothing."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._handlers: dict[type, Callable[[Any], None]] = {
            Hello: self._hello,
            Beat: self._beat,
            Suspect: self._suspect,
            Boundary: self._boundary,
            Leave: self._leave,
            Report: self._report,
            Inventory: self._inventory,
            Flushed: self._flushed,
            Hosted: self._hosted,
            Stuck: self._stuck,
            Done: self._done,
        }

    def receive(self, message: Message) -> None:
        """Raises `ProtocolError` on a value that is no message to the coordinator."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise ProtocolError(f"the coordinator was sent a {type(message).__name__}, which is no message to it")
        course = self._course
        uid = message.worker.uid if isinstance(message, Hello) else getattr(message, "uid", None)
        if course.over:  # a newcomer, or one that waits for somebody who has ended
            if isinstance(message, (Hello, Beat)) and keeper_node(str(uid)) is None:
                course.send(str(uid), Stop(course.incarnation, course.over))
        elif uid in course.records.gone:
            course.out(str(uid))
        else:
            handler(message)

    def _hello(self, message: Hello) -> None:
        course, uid = self._course, message.worker.uid
        view, change = course.records.view, course.changes.open
        if message.view > (view.number if view is not None else 0):
            course.emit(Say("error", f"worker {uid} is in view {message.view}, which was never recorded here"))
            course.out(uid)
        elif course.part(uid):
            course.presence.heard(uid)
            if change is not None:
                course.changes.again(uid)
            elif view is not None and message.view < view.number:
                course.send(uid, Install(course.incarnation, view))
        elif message.view:
            course.out(uid)
        else:
            course.presence.heard(uid)
            course.crew.waiting[uid] = message.worker
            self._arrived()

    def _arrived(self) -> None:
        """Somebody new waits: now, at the next boundary, with the open change, or as a spare."""
        course, change = self._course, self._course.changes.open
        if change is None and course.records.view is not None:
            course.announce()
        elif change is None or change.stage is Stage.PAUSED:
            if lacking := course.crew.lacking():
                course.pause(lacking)
            else:
                course.begin("enough workers are there")

    def _beat(self, beat: Beat) -> None:
        course, uid = self._course, beat.uid
        node, view = keeper_node(uid), course.records.view
        if node is not None:
            if node not in course.crew.keepers:
                course.keeper_there(node)
            course.presence.heard(uid)
            course.send(uid, BeatSeen(course.incarnation))
            if view is not None and beat.view < view.number and course.changes.open is None:
                course.send(uid, Install(course.incarnation, view))
                course.unasked(node)
        elif uid not in course.crew.known:
            course.send(uid, Poll(course.incarnation))
        else:
            course.presence.beat(beat)
            course.send(uid, BeatSeen(course.incarnation))
            answer = course.presence.answered(uid)
            if course.changes.open is None and course.member(uid) and view is not None:
                if beat.view < view.number:
                    course.send(uid, Install(course.incarnation, view))
                if answer is not None:
                    course.begin(f"{answer}; it answers, so connections are made anew")

    def _suspect(self, message: Suspect) -> None:
        course, view = self._course, self._course.records.view
        members = course.member(message.uid) and course.member(message.peer) and message.uid != message.peer
        if members and course.changes.open is None and view is not None and message.view == view.number:
            course.presence.suspect(message, course.incarnation)

    def _boundary(self, message: Boundary) -> None:
        course, view = self._course, self._course.records.view
        here = view is not None and message.view == view.number and course.member(message.uid)
        if here and course.changes.open is None:  # also where nobody wants anything any more: it lets them go on
            course.begin(f"the boundary at attempt {message.decided} is reached")

    def _leave(self, message: Leave) -> None:
        course, uid = self._course, message.uid
        if course.part(uid):
            if uid not in course.crew.leaving:
                course.emit(Say("info", f"worker {uid} leaves: {message.reason}"))
            course.crew.leaving[uid] = message.reason
            change = course.changes.open
            if change is not None and change.stage is Stage.PAUSED and not course.crew.staying:
                course.flush()
            course.announce()
        elif uid in course.crew.waiting:
            course.crew.remove(uid)
            course.presence.forget(uid)

    def _report(self, message: Report) -> None:
        self._course.changes.report(message)
        self._course.advance()

    def _inventory(self, message: Inventory) -> None:
        if not self._course.changes.inventory(message):
            self._course.unasked(message.node)
        self._course.advance()

    def _flushed(self, message: Flushed) -> None:
        try:
            self._course.changes.flushed(message)
        except ProtocolError as error:
            self._course.stop(str(error))
        else:
            self._course.advance()

    def _hosted(self, message: Hosted) -> None:
        if self._is_host(message):
            self._course.rehosting.hosted(message)

    def _stuck(self, message: Stuck) -> None:
        if self._is_host(message) and self._course.changes.open is None:
            self._course.presence.excused(message.uid)
            self._course.rehosting.no_exact_copy(message, self._course.incarnation)
            self._course.look_again()

    def _is_host(self, message: Hosted | Stuck) -> bool:
        view = self._course.records.view
        return (
            view is not None
            and message.view == view.number
            and view.workers[view.hosts[message.virtual_worker]].uid == message.uid
        )

    def _done(self, message: Done) -> None:
        course, view = self._course, self._course.records.view
        if view is not None and message.view == view.number and course.member(message.uid):
            ended = course.stopping or course.deserted or "the run was told to stop"
            course.finish(ended if view.ending else "the run is complete")
