"""The part of a worker that hears while the training thread computes: it answers probes, refuses what is old, and
keeps what the coordinator says until the training thread comes to a wait."""

from __future__ import annotations

from elastic_dgc.membership import control as say
from elastic_dgc.membership.roster import View, Worker
from elastic_dgc.protocol.letters import Fetch, Frame, Given, Kept, Probe, Reached, Snapshot
from elastic_dgc.protocol.post import Post
from elastic_dgc.protocol.wait import COORDINATOR, Out, Over

Doing = tuple[str, int, int]  # phase, attempt, virtual worker (-1: none)


class Agent:
    """Events in, letters out. Everything it has learned is read by `Wait.until`s."""

    def __init__(self, me: Worker) -> None:
        self.me = me
        self.post = Post()
        self.incarnation = 0
        self.number = 0  # the highest view that was fenced or installed, as far as one knows here
        self.view: View | None = None  # what the training thread has installed
        self.fence: say.Fence | None = None
        self.plan: say.Plan | None = None
        self.installed: View | None = None  # what the coordinator has installed
        self.reached: set[str] = set()
        self.given: dict[tuple[int, str, int, int], Given] = {}
        self.kept: dict[tuple[int, str], int | None] = {}  # (virtual worker, buddy's node): where a replay would begin
        self.pending = False
        self.over: tuple[str, str] | None = None
        self.paused = ""
        self.inexact_allowed: set[tuple[int, int]] = set()
        self.unanswered: dict[str, Out] = {}  # what a coordinator that comes back must be told again
        self.coordinator_lost = False
        self.doing: Doing = ("joining", 0, -1)

    # --- what arrives

    def hear(self, sender: str, letter: object) -> list[Out]:
        """A letter from a worker, a keeper or the coordinator. Returns the answers."""
        match letter:
            case Frame():
                self.post.deliver(sender, letter)
            case Probe():
                return [Out(sender, Reached(letter.number))]
            case Reached():
                if letter.number == self.number:
                    self.reached.add(sender)
            case Given():
                if letter.number >= self.number or (self.view and letter.number == self.view.number):
                    self.given[(letter.number, letter.what, letter.attempt, letter.virtual_worker)] = letter
            case Kept():
                self.kept[(letter.virtual_worker, letter.node)] = letter.start
            case Fetch() | Snapshot():
                raise TypeError(f"a worker is asked for {letter}: that is a keeper's")
            case _:
                return self._ordered(letter)
        return []

    def _ordered(self, letter: object) -> list[Out]:
        """From the coordinator. What an older incarnation of it says is ignored."""
        incarnation: int = letter.incarnation  # type: ignore[attr-defined]
        if incarnation < self.incarnation:
            return []
        self.incarnation, self.coordinator_lost = incarnation, False
        match letter:
            case say.Fence():
                if letter.number > self.number:
                    self.number, self.fence, self.plan, self.installed = letter.number, letter, None, None
                    self.reached = {self.me.uid}
                    self.post.fence(letter.number)
            case say.Plan():
                known = self.view.number if self.view is not None else 0
                if letter.number >= self.number and letter.number > known:
                    self.number, self.plan = letter.number, letter
                    self.post.fence(letter.number)
            case say.Install():
                known = self.view.number if self.view is not None else 0
                if letter.view.number >= self.number and letter.view.number > known:
                    self.number, self.installed = letter.view.number, letter.view
            case say.Pending():
                self.pending = self.view is not None and letter.view == self.view.number
            case say.Paused():
                self.paused = letter.reason
            case say.AllowInexact():
                self.inexact_allowed.add((letter.view, letter.virtual_worker))
            case say.Stop():
                self.over = self.over or ("stopped", letter.reason)
            case say.Out():  # also to a newcomer: it was lost before its view was installed, and is taken in no more
                self.over = self.over or ("out", f"view {letter.number} is without this worker")
            case say.Ping():
                return [self.beat()]
            case say.Poll():
                return [self.hello(), *self.unanswered.values()]
            case say.BeatSeen():
                pass
            case _:
                raise TypeError(f"a worker is told {letter}")
        return []

    def hello(self) -> Out:
        return Out(COORDINATOR, say.Hello(self.me, self.view.number if self.view else 0))

    def beat(self) -> Out:
        """Called every `Limits.beat_s` by whoever has the clock."""
        phase, attempt, virtual_worker = self.doing
        return Out(
            COORDINATOR, say.Beat(self.me.uid, self.view.number if self.view else 0, phase, attempt, virtual_worker)
        )

    def leave(self, reason: str) -> list[Out]:
        """This process is to end soon (a drain notice, SIGTERM, a spot warning): hand over at the next boundary."""
        self.unanswered["leave"] = Out(COORDINATOR, say.Leave(self.me.uid, reason))
        return [self.unanswered["leave"]]

    def suspect(self, peer: str, reason: str) -> list[Out]:
        """A peer's connection ended, or a deadline passed. Nothing changes by it here."""
        if self.view is None or peer not in self.view.uids or peer == self.me.uid:
            return []
        return [Out(COORDINATOR, say.Suspect(self.me.uid, self.view.number, peer, reason))]

    def end(self, kind: str, reason: str) -> Over:
        """This worker's part is over; returns what is to be raised."""
        self.over = self.over or (kind, reason)
        return Over(*self.over)

    def coordinator_silent(self) -> None:
        """`Limits.coordinator_s` passed without a word of it."""
        self.coordinator_lost = True

    # --- what the training thread reads

    @property
    def changing(self) -> bool:
        """Whether a change of view is going on that the training thread has not come to."""
        return self.over is not None or self.number > (self.view.number if self.view else 0)

    def install(self, view: View) -> None:
        """The training thread takes a view over."""
        self.view, self.fence, self.plan, self.installed = view, None, None, None
        self.pending, self.paused = False, ""
        self.post.install(view)
        mine = view.hosted(self.me.uid)
        self.kept = {key: start for key, start in self.kept.items() if key[0] in mine and view.buddy(key[0]) == key[1]}
        self.given = {key: one for key, one in self.given.items() if key[0] >= view.number}
