"""A sample of the fault matrix, at every point and of every kind: all oracles hold. The whole of it takes minutes."""

from __future__ import annotations

import pytest

from elastic_dgc.simulation.matrix import double, membership, single, tiers
from elastic_dgc.simulation.scenario import Scenario, play

FAMILIES = (
    single.singles, single.alone, single.overflows, single.sizes, double.in_the_change, double.at_once, double.buddies,
    double.one_after_another, membership.joins, tiers.fast, tiers.lasting,
)  # fmt: skip
SAMPLE = [scenario for family in FAMILIES for scenario in list(family())[::5]]


@pytest.mark.parametrize("scenario", SAMPLE, ids=lambda one: one.name)
def test_nothing_is_lost(scenario: Scenario) -> None:
    assert play(scenario).wrong == ()
