"""The loss curves' parts: settings that go through the whole warm-up, smoothing, the plot."""

from __future__ import annotations

import math
from typing import Any

from elastic_dgc.data.digits import digits_path


def test_the_steps_go_through_the_whole_warm_up(script: Any) -> None:
    for steps in (40, 300):
        _, config = script.run_of("dgc", str(digits_path()), steps, 64, 64, 0, 0.05, "resnet50")
        per_epoch = 23  # 1,438 digits
        assert steps <= config.epochs * per_epoch < steps + per_epoch
        densities = [config.compression.density_at(step, per_epoch) for step in range(config.epochs * per_epoch)]
        assert sorted(set(densities), reverse=True) == [0.25, 0.0625, 0.015625, 0.004, 0.001]
        assert densities.count(0.001) >= steps // 2
        assert (config.virtual_workers, config.exchange) == (8, "dgc")


def test_a_plot_shows_both_curves_and_what_is_not_finite_is_left_out(script: Any) -> None:
    falling = [4.0 - 0.1 * step for step in range(30)]
    text = script.plot({"dense": falling, "dgc": [*falling[:15], math.nan, *([4.0] * 14)]}, rows=7, columns=30)
    lines = text.splitlines()
    assert len(lines) == 9
    assert lines[0].startswith("   4.000 |*")
    assert lines[0].endswith("x" * 14)
    assert lines[6].rstrip().endswith("o")
    assert script.plot({"dense": [math.nan]}) == "(nothing is finite)"
    assert script.smoothed([1.0, 3.0, math.inf, 5.0], 2) == [1.0, 2.0, 3.0, 5.0]
