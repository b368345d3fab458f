"""The benchmark of a step measures what it says, on a network small enough for a test."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic_dgc.errors import UsageError

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The benchmark's modules, found by name as by the processes it starts."""
    monkeypatch.syspath_prepend(str(JOBS))
    names = ("bench_step", "bench_sides")
    found = {name: importlib.import_module(name) for name in names}
    assert all(sys.modules[name].__file__ == str(JOBS / f"{name}.py") for name in names)
    return found


def rounds_of(ddp: list[float], other: list[float]) -> list[dict[str, list[dict[str, float]]]]:
    """Rounds of one step in which ours spends 1 s on the gradient, `other` aside, and nothing on the exchange."""

    def ours(extra: float) -> list[dict[str, float]]:
        return [{"step": 1 + extra, "cpu": 1.0, "forward_backward": 1.0, "exchange": 0.0, "vote": extra}]

    rounds = zip(ddp, other, strict=True)
    return [{"ddp": [{"step": d, "cpu": 1.0}], "dense": ours(o), "dgc": ours(o)} for d, o in rounds]


@pytest.mark.parametrize(
    ("ddp", "other", "passed"), [(1.0, 0.05, True), (0.9, 0.05, False), (2.0, 0.12, False), (0.96, 0.05, True)]
)
def test_both_limits_must_be_kept(scripts: dict[str, Any], ddp: float, other: float, passed: bool) -> None:
    found = scripts["bench_step"].summarise(rounds_of([ddp] * 3, [other] * 3))
    assert found["passed"] is passed
    assert found["ratio"] == pytest.approx((1 + other) / ddp, abs=1e-3)
    assert found["other_share"] == pytest.approx(other / (1 + other), abs=1e-3)


def test_a_disturbed_round_does_not_count(scripts: dict[str, Any]) -> None:
    found = scripts["bench_step"].summarise(rounds_of([1.0, 1.0, 0.1], [0.05, 0.05, 0.05]))
    assert found["ratio"] == pytest.approx(1.05)
    assert found["ratio_range"] == [pytest.approx(1.05), pytest.approx(10.5)]


def test_what_cannot_be_measured_is_refused(scripts: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="rounds = 0: must be at least 1"):
        scripts["bench_step"].measure(scripts["bench_sides"].Bench(rounds=0))


@pytest.mark.processes
def test_two_processes_do_the_same_work_and_all_of_it_is_timed(scripts: dict[str, Any]) -> None:
    bench = scripts["bench_sides"].Bench(steps=2, rounds=1, batch=4, model="digits", size=8)
    result = scripts["bench_step"].measure(bench)  # raises unless dense and DDP reach the same weights
    assert 0 < result["bytes_sent"]["dgc"] < result["bytes_sent"]["dense"] / 10
    for mode in ("dense", "dgc"):
        parts = result[mode]
        assert all(value >= 0 for value in parts["other_parts_ms"].values())
        named = parts["forward_backward_ms"] + parts["exchange_ms"] + parts["other_ms"]
        assert named == pytest.approx(result[f"{mode}_ms"], abs=0.2)  # of two steps the median is the mean
    assert "NOT met" in scripts["bench_step"].table({**result, "passed": False})
