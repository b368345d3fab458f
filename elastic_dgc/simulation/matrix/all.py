"""The whole of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from elastic_dgc.simulation.matrix import double, limits, membership, single, tiers
from elastic_dgc.simulation.scenario import Scenario

FAMILIES: tuple[Callable[[], Iterator[Scenario]], ...] = (
    single.singles, single.alone, single.overflows, single.sizes,
    double.in_the_change, double.at_once, double.buddies, double.one_after_another, double.late,
    membership.joins, membership.leaves, membership.bystanders, membership.last_words, membership.pauses,
    membership.coordinator,
    tiers.too_early, tiers.fast, tiers.damaged, tiers.lasting, tiers.nothing_left, tiers.prepared, tiers.ahead,
    tiers.returning,
    limits.hangs, limits.losses, limits.away, limits.poison,
)  # fmt: skip


@lru_cache(maxsize=1)
def matrix() -> tuple[Scenario, ...]:
    """Every scenario, each once. Raises ValueError where two have one name."""
    found: dict[str, Scenario] = {}
    for family in FAMILIES:
        for one in family():
            if found.setdefault(one.name, one) != one:
                raise ValueError(f"two scenarios are named {one.name}")
    return tuple(found.values())
