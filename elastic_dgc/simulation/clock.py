"""Virtual time: events in order, nothing sleeps."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable


class Clock:
    """`now` in seconds. `rng` draws every delay, so a seed gives one course of events."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._order), what))

    def run(self, until: Callable[[], bool], limit_s: float, most_events: int = 200_000) -> bool:
        """Let events happen until that holds. Returns False where virtual time or events ran out first."""
        for _ in range(most_events):
            if until():
                return True
            if not self._events or self._events[0][0] > limit_s:
                return until()
            self.now, _, what = heapq.heappop(self._events)
            what()
        return until()
