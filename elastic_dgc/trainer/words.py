"""Words that several messages share."""

from __future__ import annotations


def count(number: float, noun: str) -> str:
    """'1 worker', '2 workers', '1.5 GPUs'."""
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"


def workers_range(low: int, high: int) -> str:
    """'2 workers', '1 to 4 workers'."""
    return count(low, "worker") if low == high else f"{low} to {high} workers"
