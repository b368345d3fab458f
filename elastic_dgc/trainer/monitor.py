"""The actor through which a driver sees its workers: progress, events, the outcome, and the wish to stop.

Off the path of a step: a reporter thread in each worker talks to it a few times a second. It lives and dies with the
driver; what must outlive the driver is in the storage.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import ray

from elastic_dgc.trainer.losses import Loss

NAMESPACE = "elastic_dgc"


@dataclass(frozen=True)
class News:
    """What the driver gets: `pushes` counts the progress reports, so that silence can be told from standing still."""

    progress: dict[str, Any]
    pushes: int
    events: list[dict[str, Any]]
    outcome: dict[str, Any] | None
    losses: list[Loss]


class MonitorState:
    """What the actor holds. Plain, so that tests need no Ray."""

    def __init__(self) -> None:
        self._progress: dict[str, Any] = {}
        self._events: list[dict[str, Any]] = []
        self._outcome: dict[str, Any] | None = None
        self._losses: list[Loss] = []
        self._said: set[Any] = set()
        self._stop = False
        self._pushes = 0
        self._controller: Any = None

    def push(self, progress: dict[str, Any] | None, events: list[dict[str, Any]]) -> bool:
        """From a worker: news. Returns whether the driver wants the run to stop."""
        if progress is not None:
            self._progress = progress
            self._pushes += 1
        self._events.extend(event for event in events if self._is_new(event))
        return self._stop

    def _is_new(self, event: dict[str, Any]) -> bool:
        """Whether nobody has said this yet: the same warning of several workers of one group is one line, and what is
        marked with `once` (see `Reporter`) is said once in the whole run."""
        key: Any = event.get("once")
        if key is None and event["level"] == logging.WARNING:
            key = (self._progress.get("view"), event["text"].partition("] ")[2] or event["text"])
        if key is None:
            return True
        new = key not in self._said
        self._said.add(key)
        return new

    def lose(self, loss: Loss) -> None:
        """From a survivor: whom its group lost."""
        self._losses.append(loss)

    def finish(self, outcome: dict[str, Any]) -> None:
        """From worker 0, or whoever failed: how the run ended. The first one counts."""
        if self._outcome is None:
            self._outcome = outcome

    def poll(self, seen: int) -> News:
        """To the driver: what is new after the first `seen` events."""
        return News(self._progress, self._pushes, self._events[seen:], self._outcome, self._losses)

    def ended(self) -> bool:
        """To a worker that starts: whether the run has ended already."""
        return self._outcome is not None

    def controller_is(self, handle: Any) -> None:
        """From Ray Train's controller: its own handle."""
        self._controller = handle

    def controller(self) -> Any:
        """To the driver: the handle, or None as long as there is no controller."""
        return self._controller

    def stop(self) -> None:
        """From the driver: end at the next boundary, state saved."""
        self._stop = True


def start_monitor(driver: str) -> Any:
    """Start the actor for one start of a run. `driver` ('<run> <random>') stands in its name, as the dashboard shows
    it; it needs no CPU, so that it never takes a worker's place."""
    actor: Any = ray.remote(MonitorState)
    return actor.options(name=_name(driver), namespace=NAMESPACE, num_cpus=0, max_concurrency=8).remote()


def find_monitor(driver: str) -> Any:
    """The actor, from a worker. Raises ValueError where there is none."""
    return ray.get_actor(_name(driver), namespace=NAMESPACE)


def _name(driver: str) -> str:
    return f"elastic_dgc monitor {driver}"
