"""What each worker is doing, as far as its beats tell, and the timers that notice when it does nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from elastic_dgc.membership.actions import Action, CancelTimer, Say, Send, SetTimer
from elastic_dgc.membership.control import Beat, Ping, Suspect
from elastic_dgc.membership.limits import Limits

BEAT = "beat"
PHASE = "phase"
CONFIRM = "confirm"

FORWARD = "forward"
UNTIMED = ("", "joining", "done")  # a newcomer has its own limit, and whoever is done only ends


class Presence:
    """Emits timers and pings; what follows when a timer passes is for the coordinator to say.

    A timer is named `<kind>:<uid>`; see `BEAT`, `PHASE`, `CONFIRM`.
    """

    def __init__(self, limits: Limits, emit: Callable[[Action], None]) -> None:
        self._limits = limits
        self._emit = emit
        self._last: dict[str, Beat] = {}
        self._timed: dict[str, tuple[str, int, int]] = {}
        self._suspected: dict[str, str] = {}

    def heard(self, uid: str) -> None:
        """It is there: a worker or a keeper's address."""
        self._emit(SetTimer(f"{BEAT}:{uid}", self._limits.silent_s))

    def beat(self, beat: Beat) -> None:
        """The time of a phase runs from the first beat that shows it."""
        self.heard(beat.uid)
        self._last[beat.uid] = beat
        phase, name = (beat.phase, beat.attempt, beat.virtual_worker), f"{PHASE}:{beat.uid}"
        if beat.phase in UNTIMED:
            if self._timed.pop(beat.uid, None) is not None:
                self._emit(CancelTimer(name))
        elif phase != self._timed.get(beat.uid):
            self._timed[beat.uid] = phase
            self._emit(SetTimer(name, self._limit(beat)))

    def told(self, beat: Beat) -> None:
        """Another one told what it was doing, who has its memory: no sign of life."""
        self._last[beat.uid] = beat

    def _limit(self, beat: Beat) -> float:
        """Where peers are waited for, a worker suspects them by itself when the limit passes: it is lost only if it
        does nothing about it, and gets the time to."""
        try:
            limit = self._limits.of_phase(beat.phase)
        except KeyError:
            text = f"worker {beat.uid} is in a phase '{beat.phase}', which has no limit: it gets the longest there is"
            self._emit(Say("error", text))
            return max(float(getattr(self._limits, one.name)) for one in fields(self._limits))
        return limit if beat.phase == FORWARD else limit + self._limits.beat_s + self._limits.confirm_s

    def interrupted(self) -> None:
        """A change of view begins: it has limits of its own, and phases are timed anew by the next beats."""
        for uid in self._timed:
            self._emit(CancelTimer(f"{PHASE}:{uid}"))
        self._timed.clear()

    def excused(self, uid: str) -> None:
        """It waits in this phase because it was told to, or will be: the phase itself has no limit any more."""
        if uid in self._timed:
            self._emit(CancelTimer(f"{PHASE}:{uid}"))

    def suspect(self, suspect: Suspect, incarnation: int) -> None:
        """Ask the suspected one, unless it is being asked already."""
        if suspect.peer in self._suspected:
            return
        self._suspected[suspect.peer] = f"worker {suspect.uid} suspects worker {suspect.peer}: {suspect.reason}"
        self._emit(Say("warning", self._suspected[suspect.peer]))
        self._emit(SetTimer(f"{CONFIRM}:{suspect.peer}", self._limits.confirm_s))
        self._emit(Send(suspect.peer, Ping(incarnation)))

    def answered(self, uid: str) -> str | None:
        """The suspicion that this sign of life answers, None where there was none."""
        text = self._suspected.pop(uid, None)
        if text is not None:
            self._emit(CancelTimer(f"{CONFIRM}:{uid}"))
        return text

    def forward(self, uid: str) -> tuple[int, int] | None:
        """(attempt, virtual worker) of the forward pass it was in when last heard of; None in any other phase."""
        last = self._last.get(uid)
        return (last.attempt, last.virtual_worker) if last is not None and last.phase == FORWARD else None

    def doing(self, uid: str) -> str:
        """What it was last heard to do, in words that go on a sentence; '' where nothing is known."""
        last = self._last.get(uid)
        if last is None or not last.phase:
            return ""
        whose = f" of virtual worker {last.virtual_worker}" if last.virtual_worker >= 0 else ""
        return f" in {last.phase}{whose}, attempt {last.attempt}"

    def forget(self, uid: str) -> None:
        """It is not there any more, or not expected to be."""
        self._emit(CancelTimer(f"{BEAT}:{uid}"))
        if self._timed.pop(uid, None) is not None:
            self._emit(CancelTimer(f"{PHASE}:{uid}"))
        self._last.pop(uid, None)
        self.answered(uid)
