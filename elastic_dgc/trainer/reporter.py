"""A worker's thread that tells the driver how things are, so that the training thread never calls Ray."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import ray
from ray.exceptions import RayError

from elastic_dgc.log import ROOT
from elastic_dgc.trainer.losses import Loss

PERIOD_S = 0.5
PUSH_DEADLINE_S = 20.0


class Reporter(logging.Handler):
    """Carries the package's log records, and worker 0's progress, to the driver's monitor.

    Everyone's warnings are carried, and worker 0's information. `stop_requested` turns true when the driver wants the
    run to end. A monitor that does not answer is no reason to stop training: it is said once, in the worker's log.
    """

    def __init__(self, monitor: Any, rank: int, leave: threading.Event) -> None:
        super().__init__(logging.INFO if rank == 0 else logging.WARNING)
        self._leave = leave
        self.stop_requested = False
        self.progress: dict[str, Any] | None = None
        self.loss: Loss | None = None
        self._monitor, self._rank = monitor, rank
        self._events: list[dict[str, Any]] = []
        self._guard = threading.Lock()
        self._closing = threading.Event()
        self._silent = False
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    @property
    def leave_requested(self) -> bool:
        """Ray is about to end this group: save and leave."""
        return self._leave.is_set()

    def start(self) -> Reporter:
        root = logging.getLogger(ROOT)
        root.setLevel(logging.INFO)
        root.addHandler(self)
        self._thread.start()
        return self

    def emit(self, record: logging.LogRecord) -> None:
        event = {
            "level": record.levelno,
            "text": record.getMessage(),
            "worker": self._rank,
            "unix_s": time.time(),
            "once": getattr(record, "once", None),
        }
        with self._guard:
            self._events.append(event)

    def close(self) -> None:
        """Send what is left and end the thread."""
        logging.getLogger(ROOT).removeHandler(self)
        self._closing.set()
        self._thread.join(PUSH_DEADLINE_S)
        self._push()
        super().close()

    def tell_loss(self) -> None:
        """Tell the driver what was lost, if anything was, before this process is ended for it."""
        self._push()
        if self.loss is not None:
            with contextlib.suppress(RayError):  # then the driver knows less, no more
                ray.get(self._monitor.lose.remote(self.loss), timeout=PUSH_DEADLINE_S)

    def finish(self, outcome: dict[str, Any]) -> None:
        """Tell the driver how the run ended, after everything that was said before."""
        self._push()
        ray.get(self._monitor.finish.remote(outcome), timeout=PUSH_DEADLINE_S)

    def _run(self) -> None:
        while not self._closing.wait(PERIOD_S):
            self._push()

    def _push(self) -> None:
        with self._guard:
            events, self._events = self._events, []
        progress = self.progress if self._rank == 0 else None
        if not events and progress is None:
            return
        try:
            self.stop_requested |= ray.get(self._monitor.push.remote(progress, events), timeout=PUSH_DEADLINE_S)
        except RayError as error:
            if not self._silent:
                logging.getLogger(ROOT).debug("the driver's monitor does not answer: %s", error)
            self._silent = True
