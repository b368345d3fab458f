"""The heartbeat: shows that a run is being trained now, and tells its own group when it has become the past."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

from elastic_dgc.errors import StorageError
from elastic_dgc.log import logger
from elastic_dgc.membership.alive import DRIVER_FILE, FILE, PERIOD_S, RUNNING
from elastic_dgc.membership.files import Files, encode
from elastic_dgc.membership.view import latest_number

SILENCE_LIMIT_S = 60.0
_JOIN_S = 10.0


class Heartbeat:
    """Rewrites `heartbeat.json` in the run's storage every `period_s` seconds, from a daemon thread of its own.

    Made by the one process of a group that claimed `view`. `on_fenced(reason)` is called once, from that thread, and
    no beat is written after it: when a newer view was claimed, or when nothing could be written for
    `silence_limit_s`, since others may then have taken the run for dead. Shorter failures are logged. `attempt` may
    be set at any time; the next beat shows it.
    """

    file = FILE

    def __init__(
        self,
        files: Files,
        view: int,
        period_s: float = PERIOD_S,
        *,
        on_fenced: Callable[[str], None],
        silence_limit_s: float = SILENCE_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if period_s <= 0 or silence_limit_s <= 0:
            raise ValueError(f"period_s {period_s}, silence_limit_s {silence_limit_s}: both must be above 0")
        self.attempt = 0
        self.fenced: str | None = None  # the reason, once it is
        self._files, self._view, self._period_s, self._on_fenced = files, view, period_s, on_fenced
        self._silence_limit_s, self._clock, self._wall_clock = silence_limit_s, clock, wall_clock
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._beats = 0
        self._last_good_s = clock()
        self._failing = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def silent_for_s(self) -> float:
        """Seconds since the last beat was written, for the trainer to check: a write can hang instead of failing."""
        return self._clock() - self._last_good_s

    def start(self) -> Heartbeat:
        """Write the first beat, in the caller's thread, and go on in the background. Fences at once where a newer
        view is there already. Raises `StorageError` where even the first cannot be written, `RuntimeError` when
        started twice."""
        if self._thread is not None:
            raise RuntimeError("this heartbeat was started already")
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        if self._check_view():
            self._write(RUNNING)
            self._thread.start()
        return self

    def beat(self) -> bool:
        """One period's work: look for a newer view, then write. False once fenced. What the thread does; tests call
        it in its place."""
        if self.fenced is not None:
            return False
        try:
            if not self._check_view():
                return False
            self._write(RUNNING)
        except StorageError as error:
            if not self._failing:
                logger().warning("heartbeat not written, trying on: %s", error)
            self._failing = True
            if self.silent_for_s >= self._silence_limit_s:
                self._fence(
                    f"no heartbeat written for {self.silent_for_s:.0f} s, others may go on with the run: {error}"
                )
                return False
            return True
        if self._failing:
            logger().info("heartbeat written again")
            self._failing = False
        return True

    def stop(self, state: str) -> None:
        """End the thread and leave a last beat that says how it ended (see `alive`); nothing is written once fenced.
        May be called again. A last beat that cannot be written is logged: others then watch before they start."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                logger().warning("last heartbeat not written: a write hangs in %s", self._files.url(self.file))
                return
        try:
            if self.fenced is None and self._check_view():
                self._write(state)
        except StorageError as error:
            logger().warning("last heartbeat not written: %s", error)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._period_s) and self.beat():
                pass
        except Exception as error:
            self._fence(f"the heartbeat itself failed: {error!r}")  # others will take a silent run for dead
            raise

    def _check_view(self) -> bool:
        newest = latest_number(self._files)
        if newest > self._view:
            self._fence(f"view {newest} was claimed, this is view {self._view}")
            return False
        return True

    def _fence(self, reason: str) -> None:
        if self.fenced is None:
            self.fenced = reason
            self._on_fenced(reason)

    def _write(self, state: str) -> None:
        record = {
            "state": state,
            "view": self._view,
            "beat": self._beats,
            "attempt": self.attempt,
            "host": self._host,
            "pid": self._pid,
            "period_s": self._period_s,
            "unix_s": self._wall_clock(),
        }
        self._beats += 1
        self._files.write(self.file, encode(record))
        self._last_good_s = self._clock()


class DriverBeat(Heartbeat):
    """The same for the driver, in `driver.json`, from its decision to go on with a run until it ends: while Ray starts,
    and between two groups, no worker beats. Views are no concern of it: its own groups claim them."""

    file = DRIVER_FILE

    def __init__(self, files: Files, period_s: float = PERIOD_S) -> None:
        super().__init__(files, 0, period_s, on_fenced=lambda reason: None)

    def _check_view(self) -> bool:
        return True
