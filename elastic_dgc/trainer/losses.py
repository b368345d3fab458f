"""A lost group of workers, told in one line once the next one starts: what happened, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elastic_dgc.trainer.words import count


@dataclass(frozen=True)
class Loss:
    """What a survivor knows of a lost worker. `attempts` are those that its group had decided."""

    rank: int
    host: str
    reason: str
    attempts: int


class Losses:
    """Followed by the driver. Reads what it is told; knows no Ray."""

    def __init__(self) -> None:
        self._view: int | None = None
        self._attempts = 0  # the most that the present group is known to have decided
        self._seen = 0  # losses that earlier groups told of

    def follow(self, progress: dict[str, Any], losses: Sequence[Loss]) -> str | None:
        """The newest progress and all losses so far. Returns the line when a group has loaded its state and goes on
        where one before it was lost; None otherwise, also after a group that saved and made room for another size."""
        view, attempt = progress.get("view"), progress.get("attempt")
        if view is None or attempt is None:
            return None
        if view == self._view:
            self._attempts = max(self._attempts, attempt)
            return None
        first, self._view = self._view is None, view
        new, self._seen = losses[self._seen :], len(losses)
        resumed = progress.get("resumed", attempt)
        again = max([self._attempts, *(one.attempts for one in new)]) - resumed
        self._attempts = attempt
        if not new and (first or again <= 0):
            return None
        where, cost = f"from attempt {resumed} of {progress['end']}", "nothing is computed again"
        if not resumed:
            where = "from the beginning, there is no checkpoint yet"
        if again > 0:
            cost = f"{count(again, 'attempt')} {'is' if again == 1 else 'are'} computed again"
        return f"{_what(new)}: the group starts again {where}; {cost}"


def _what(losses: Sequence[Loss]) -> str:
    """Whoever fell silent or broke off explains those that left because of it."""
    if not losses:
        return "all workers were lost"
    one = min(losses, key=lambda loss: loss.reason.startswith("it ended its part"))
    reason = one.reason.partition(":")[0].partition(";")[0]
    return f"worker lost (rank {one.rank} on {one.host}: {reason})"
