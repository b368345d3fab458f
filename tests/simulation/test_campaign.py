"""The whole fault matrix and random schedules, in two processes: all oracles hold in each of them."""

from __future__ import annotations

from collections import Counter

import pytest

from elastic_dgc.simulation import campaign
from elastic_dgc.simulation.durable import MemoryDurable
from elastic_dgc.simulation.faults import KINDS, POINTS
from elastic_dgc.simulation.matrix.all import matrix
from elastic_dgc.simulation.matrix.variations import recipes
from elastic_dgc.simulation.reference import reference
from elastic_dgc.simulation.training import Recipe, Training
from elastic_dgc.step.plan import plan

FIRST_SEED = 0
SCHEDULES = 300


@pytest.mark.processes
def test_nothing_is_lost_whatever_fails() -> None:
    verdicts = list(campaign.run(campaign.names(FIRST_SEED, SCHEDULES), processes=2))
    wrong = {one.name: one.wrong for one in verdicts if one.wrong}
    assert not wrong, f"random schedules from seed {FIRST_SEED}; jobs/fault_matrix.py --only NAME plays one again"
    assert len(verdicts) >= 1000
    by_expectation = Counter(one.expected for one in verdicts)
    assert by_expectation["equal"] > 0.75 * len(verdicts)
    assert sum(one.exact for one in verdicts) > 0.9 * len(verdicts)


def test_every_fault_and_every_point_is_among_them() -> None:
    faults = [fault for scenario in matrix() for fault in scenario.faults]
    assert {one.kind for one in faults} == KINDS.keys()
    assert {one.point for one in faults} == POINTS.keys()
    settings = [scenario.setting for scenario in matrix()]
    assert {len(one.nodes) for one in settings} == set(range(1, 6))
    assert {one.recipe.virtual_workers for one in settings} == set(range(1, 9))
    assert 600 <= len(matrix()) <= 1200


@pytest.mark.parametrize("virtual_workers", [1, 4, 8])
def test_recipes_are_what_their_names_say(virtual_workers: int) -> None:
    for recipe in recipes(virtual_workers):
        training = Training(recipe, MemoryDurable())
        layout = training.replica(()).layout
        whole = [plan(training.settings, layout, applied).whole for applied in range(recipe.attempts)]
        assert any(whole) == (recipe.kind in ("dense", "warm-up"))
        assert all(whole) == (recipe.kind == "dense")
        skips = [] if recipe.overflow is None else [recipe.overflow[0]]
        committed = reference(recipe).committed
        assert [number for number, done in enumerate(committed) if not done] == skips


def test_the_same_seed_gives_the_same_schedule_and_the_same_verdict() -> None:
    once, again = (next(campaign.run(["seed-17"], 1)) for _ in range(2))
    assert once == again
    assert (
        campaign.scenario_named("seed-17") == campaign.scenario_named("seed-17") != campaign.scenario_named("seed-18")
    )
    with pytest.raises(ValueError, match="no scenario is named 'seed-x'"):
        next(campaign.run(["seed-x"], 1))


def test_a_gradient_may_overflow_though_the_loss_does_not() -> None:
    scaled = reference(Recipe(scaled=True, overflow=(4, 1)))
    assert scaled.skipped[4] == (1,)
