"""Medians, and figures against what is wanted of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

FEWEST_ROUNDS = 3  # with fewer, a range says nothing of the noise


def counted(number: int, what: str) -> str:
    """'1 worker', '2 workers'."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def or_about_zero(value: float) -> str:
    """Two decimals; '~0' for a difference that noise made negative."""
    return "~0" if value < 0 else f"{value:.2f}"


def with_range(middle: float, ends: Sequence[float]) -> str:
    """'2.01 (1.42-2.27)', from a median and its [least, largest]; the median alone where all look the same."""
    low, high = (or_about_zero(end) for end in ends)
    return or_about_zero(middle) if low == high else f"{or_about_zero(middle)} ({low}-{high})"


def ms(seconds: float) -> float:
    """Seconds to milliseconds, rounded for a reader."""
    return round(1000 * seconds, 2)


def median_ratio(pairs: Iterable[tuple[float, float]]) -> tuple[float, list[float]]:
    """The median of numerator / denominator, each pair from one round, and the [least, largest] of them.

    The ratio within a round and not of two medians: what else a machine does changes slowly, and meets both sides.
    """
    ratios = sorted(above / below for above, below in pairs)
    return round(statistics.median(ratios), 3), [round(ratios[0], 3), round(ratios[-1], 3)]


@dataclass(frozen=True)
class Wanted:
    """A figure and its limit. `at_most`: the figure must not be above the limit, otherwise not below."""

    name: str
    value: float
    limit: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def line(self) -> str:
        """'pass_ratio 1.42, wanted at most 1.8: met'"""
        bound = "at most" if self.at_most else "at least"
        return f"{self.name} {self.value:g}, wanted {bound} {self.limit:g}: {'met' if self.met else 'NOT met'}"

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "limit": self.limit, "at_most": self.at_most, "met": self.met}


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Columns as wide as what stands in them; the first to the left, the others to the right. None is left empty."""
    cells = [["" if one is None else str(one) for one in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(t.rjust(w) for t, w in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in cells
    )
