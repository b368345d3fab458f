"""Ending Ray Train's controller from the driver.

`fit()` waits in an untimed `ray.get` in a thread of the driver. A driver that gives up before Ray Train does must end
that wait before it leaves Ray: a thread that waits through `ray.shutdown()` can crash the process (ray#31145).
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train.v2._internal.execution.callback import ControllerCallback

from elastic_dgc.trainer.monitor import find_monitor

KILL_S = 30.0  # a controller that is still starting announces itself within this time

logger = logging.getLogger("elastic_dgc")


class AnnounceController(ControllerCallback):
    """In the controller: tells the monitor which actor the controller is. Raises nothing: an exception in a callback
    would end the run."""

    def __init__(self, driver: str) -> None:
        self._driver = driver

    def after_controller_start(self, train_run_context: Any) -> None:
        try:
            find_monitor(self._driver).controller_is.remote(ray.get_runtime_context().current_actor)
        except (ValueError, RayError, RuntimeError):
            logger.warning("the driver cannot be told of its controller", exc_info=True)


def end_fit(monitor: Any, thread: threading.Thread, patience_s: float) -> bool:
    """Let the thread that waits in `fit()` come to its end; after `patience_s` kill the controller it waits for, with
    which the workers end. Returns whether the thread has ended."""
    thread.join(patience_s)
    deadline = time.monotonic() + KILL_S
    try:
        while thread.is_alive() and time.monotonic() < deadline:
            controller = ray.get(monitor.controller.remote(), timeout=KILL_S)
            if controller is not None:  # it may still be starting
                ray.kill(controller)
            thread.join(0.3)
    except RayError as error:
        logger.debug("the controller cannot be asked to end: %s", error)
    return not thread.is_alive()
