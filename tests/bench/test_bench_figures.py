"""The arithmetic of the benchmarks: ratios, what a slow mode is granted, what pays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_dgc.bench import compression, memory, networks, sizes
from elastic_dgc.bench.exchange import ExchangeBench
from elastic_dgc.bench.figures import Wanted, counted, median_ratio, table, with_range
from elastic_dgc.bench.modes import MODES, affordable, rotated
from elastic_dgc.bench.steady import PLAIN, Steady
from elastic_dgc.bench.verdict import pays, report, summarise
from elastic_dgc.compression.accumulate import Momentum, Workspace
from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import HEADER, KINDS, promised_bytes
from elastic_dgc.compression.positions import sizes as position_bytes


def layout() -> Layout:
    named = [("a.weight", torch.empty(64, 640)), ("a.bias", torch.empty(640)), ("b", torch.empty(32, 32))]
    return Layout.of(named, 256)


def test_a_ratio_is_the_median_of_those_within_rounds() -> None:
    # the machine is ten times slower in the second round: both sides of it are
    assert median_ratio([(2.0, 1.0), (30.0, 10.0), (4.0, 1.0)]) == (3.0, [2.0, 4.0])


@pytest.mark.parametrize(("value", "at_most", "met"), [(1.8, True, True), (1.81, True, False), (480, False, True)])
def test_wanted_says_whether_it_is_met(value: float, at_most: bool, met: bool) -> None:
    one = Wanted("x", value, 1.8 if at_most else 480, at_most)
    assert one.met is met
    assert one.line().endswith(": met" if met else ": NOT met")


def test_columns_of_a_table_are_aligned() -> None:
    assert table(("m", "ms"), [("long", 1.5), ("s", None)]) == "m      ms\nlong  1.5\ns"


def test_a_median_has_its_range_and_noise_below_zero_is_about_zero() -> None:
    assert with_range(2.006, [1.42, 2.271]) == "2.01 (1.42-2.27)"
    assert with_range(-0.3, [-4.0, 1.5]) == "~0 (~0-1.50)"
    assert with_range(-0.3, [-4.0, -0.1]) == "~0"
    assert with_range(1.0, [1.0, 1.0]) == "1.00"


def test_one_is_singular() -> None:
    assert [counted(number, "host") for number in (0, 1, 2)] == ["0 hosts", "1 host", "2 hosts"]


@pytest.mark.parametrize("density", [0.001, 0.004, 0.015625, 0.0625])  # of the warm-up, and after it
def test_the_limit_of_scratch_follows_the_groups(density: float) -> None:
    big = Layout.of([("w", torch.empty(2000, 2000, device="meta"))], 256)
    accumulated = Workspace("meta")
    accumulated.prepare(big.segments, density)
    maxima = memory.maxima_per_parameter(big, density)
    assert maxima == pytest.approx(accumulated.bytes / 4 / big.numel, abs=1e-4)
    usual = {0.001: 0.2, 0.0625: 0.2}.get(density, 0.2 + 1 / 8 - 1 / 64)
    assert memory.most_scratch("trainer", big.numel, maxima) == pytest.approx(usual, abs=0.001)


def test_scratch_has_no_limit_where_the_fixed_block_is_most_of_it() -> None:
    for who in memory.MOST_OWNED:
        assert memory.most_scratch(who, memory.LEAST_PARAMETERS - 1, 0.0) is None
    assert memory.most_scratch("trainer", 2_000_000, 0.0) is None  # a block of 2**19 is over a fifth of it
    assert memory.most_scratch("DDP hook", 2_000_000, 0.0) == 0.1


@pytest.mark.parametrize(("share", "rounds", "marked"), [(0.2, 3, False), (0.2, 2, True), (1.2, 3, True)])
def test_a_share_that_is_none_to_go_by_is_marked(share: float, rounds: int, marked: bool) -> None:
    cells, notes = compression.shares_of({"codec_share": {"fp32": share, "int8": 0.1}, "rounds": rounds})
    assert (cells["fp32"].endswith("*"), bool(notes)) == (marked, marked)
    assert cells["int8"].endswith("*") is (rounds < 3)


@given(limit_s=st.floats(0.1, 1000), step_s=st.floats(0.001, 1000), rounds=st.integers(1, 50), steps=st.integers(1, 50))
def test_a_mode_stays_within_its_limit_and_is_measured_at_least_once(
    limit_s: float, step_s: float, rounds: int, steps: int
) -> None:
    got_rounds, got_steps = affordable(limit_s, step_s, rounds, steps)
    assert 1 <= got_rounds <= rounds
    assert 1 <= got_steps <= steps
    total = got_rounds * got_steps
    assert total == 1 or total * step_s <= limit_s * 1.000001
    if rounds * steps * step_s <= limit_s * 0.999:
        assert total == rounds * steps


def test_every_mode_leads_a_round() -> None:
    modes = tuple(MODES)
    assert {rotated(modes, number)[0] for number in range(len(modes))} == set(modes)
    assert all(sorted(rotated(modes, number)) == sorted(modes) for number in range(len(modes)))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_count_everything_but_the_dense_values(kind: str) -> None:
    steady = Steady(layout(), 0.05, warm_steps=2)
    message = steady.step(PLAIN, kind)  # type: ignore[arg-type]
    entries = steady.layout.entries(0.05)
    value_bits = {"fp32": 32, "bf16": 16, "fp16": 16, "int8": 8}[kind]
    # the int8 scales of the dense tensors' blocks are theirs; what is shared by a block at the edge is not
    scales = 32 * (-(-(640 + entries) // 128) - 640 // 128) / entries if kind == "int8" else 0
    overhead = 8 * (HEADER.size + sum(position_bytes(steady.layout.numel, entries))) / entries
    found = sizes.bits_per_entry(steady.layout, message, kind)
    assert found == pytest.approx(value_bits + scales + overhead, abs=0.01)


def test_promises_of_the_paper_s_network_are_what_a_message_of_a_small_one_keeps() -> None:
    named = list(networks.build("resnet20", device="meta").named_parameters())
    steady = Steady(sizes.layout_of(named, CompressionConfig()), 0.01, warm_steps=1)
    found = sizes.packed_against_promised(named, steady, warm_steps=1)
    assert found.keys() == sizes.PRESETS.keys()
    for one in found.values():
        assert 0.99 * one["promised"] < one["packed"] <= one["promised"]
    ratios = sizes.upload_ratios(0.01, ["resnet20"])["resnet20"]
    assert ratios["bf16"] == round(4 * steady.layout.numel / promised_bytes(steady.layout, 0.01, "bf16"), 1)
    assert ratios["fp32"] < ratios["bf16"] < ratios["int8"] == ratios["dgc-max"]


@pytest.mark.parametrize("momentum", [PLAIN, Momentum(0.9, nesterov=True), None])
def test_the_pass_does_the_arithmetic_that_it_is_held_against(momentum: Momentum | None) -> None:
    steady = Steady(layout(), 0.05, warm_steps=2)
    steady.accumulate(momentum)
    ours = steady.v2.clone()
    scaled, steady.g = steady.g, steady.g * (1 / 1024)
    steady.eager(momentum)
    steady.g = scaled
    torch.testing.assert_close(ours, steady.v2)
    assert steady.v2.abs().max() > 0


@pytest.mark.processes
def test_memory_is_four_values_a_parameter_and_nothing_hides() -> None:
    torch.set_deterministic_debug_mode("default")

    def make() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(1000, 400), torch.nn.Linear(400, 10))

    held = memory.trainer_values(make, 0.01)
    assert (held["owned"], held["weights"], held["sum"]) == (4.0, 1.0, 1.0)
    assert 0 < held["scratch"] < 2
    assert 0 <= held["other"] < 0.05
    hook = memory.hook_values(make, 0.01)
    assert (hook["owned"], hook["weights"], hook["gradients"]) == (2.0, 1.0, 1.0)
    assert 0 < hook["scratch"] < 2


def rounds_of(steps_s: list[dict[str, float]], workers: int = 4) -> dict[str, Any]:
    """What workers return, from seconds of a step by mode and round."""
    rounds = [{n: {"step_s": s, "cpu_s": s / 2, "bytes": 10, "parts_s": {}} for n, s in one.items()} for one in steps_s]
    machine = {"cpu": "x", "cores": 1, "load": 0.5, "torch": "2"}
    return {"link": {}, "cut": {}, "machine": machine, "rounds": rounds, "workers": workers}


def test_what_pays_is_said_with_both_figures() -> None:
    bench = ExchangeBench(modes=("dgc", "dgc-max", "ddp", "powersgd1"), rounds=3)
    usual = {"none": 1.0, "dgc": 1.4, "dgc-max": 1.2, "ddp": 9.0, "powersgd1": 2.0}
    found = summarise(bench, rounds_of([usual, {n: 5 * s for n, s in usual.items()}, {**usual, "none": 1.2}]))
    assert (found["fastest"], found["dgc"], found["rival"], found["dgc_pays"]) == (
        "dgc-max",
        "dgc-max",
        "powersgd1",
        True,
    )
    assert (found["dgc_over_none"], found["dgc_over_powersgd1"]) == (1.2, 0.6)
    assert [one["met"] for one in found["wanted"]] == [True, True]
    said = "\n".join(pays(found))
    assert "DGC pays" in said
    assert "dgc-max takes 1200 ms" in said
    assert "powersgd1, 2000 ms" in said


def test_where_dgc_does_not_pay_it_is_said_too() -> None:
    bench = ExchangeBench(modes=("dgc", "ddp"))
    found = summarise(bench, rounds_of(3 * [{"none": 1.0, "dgc": 1.2, "ddp": 1.1}]))
    assert (found["fastest"], found["dgc_pays"], found["dgc_over_powersgd1"]) == ("ddp", False, None)
    assert "DGC does not pay" in "\n".join(pays(found))


@pytest.mark.parametrize(("dgc_s", "said"), [([0.9, 0.9, 1.1], "range includes 1"), ([0.5, 0.5], "takes 3 rounds")])
def test_what_rounds_do_not_tell_is_not_said(dgc_s: list[float], said: str) -> None:
    found = summarise(
        ExchangeBench(modes=("dgc", "ddp")), rounds_of([{"none": 0.4, "dgc": one, "ddp": 1.0} for one in dgc_s])
    )
    assert found["dgc_pays"] is None
    last = pays(found)[-1]
    assert "cannot be told" in last
    assert said in last
    assert f"dgc takes {1000 * dgc_s[0]:g} ms" in last
    assert "ddp, 1000 ms" in last


def test_one_worker_gets_no_verdict() -> None:
    bench = ExchangeBench(modes=("dgc", "ddp"))
    found = summarise(bench, rounds_of(3 * [{"none": 1.0, "dgc": 0.9, "ddp": 1.2}], workers=1))
    assert found["dgc_pays"] is None
    assert "wanted" not in found
    text = report({**found, "nodes": 1})
    assert "1 worker on 1 host" in text
    assert "DGC pays" not in text
    assert "fastest" not in text


def test_the_table_shows_ranges_and_no_negative_time() -> None:
    bench = ExchangeBench(modes=("ddp",))
    found = summarise(
        bench, rounds_of([{"none": 1.0, "ddp": 0.9}, {"none": 1.0, "ddp": 0.8}, {"none": 0.5, "ddp": 1.0}])
    )
    text = report({**found, "nodes": 2})
    assert found["modes"]["ddp"]["exchange_ms"] == -100
    [row] = [line for line in text.splitlines() if line.startswith("ddp ")]
    assert "0.90 (0.80-2.00)" in row
    assert "~0 (~0-500.00)" in row
    assert "not quotients" in text


def test_our_hook_is_dgc_and_no_rival_of_it() -> None:
    bench = ExchangeBench(modes=("dgc", "ddp", "ddp-dgc", "ddp-dgc-max"))
    usual = {"none": 1.0, "dgc": 1.5, "ddp": 9.0, "ddp-dgc": 1.3, "ddp-dgc-max": 1.2}
    found = summarise(bench, rounds_of([usual]))
    assert (found["fastest"], found["dgc"], found["rival"]) == ("ddp-dgc-max", "ddp-dgc-max", "ddp")


def test_a_mode_that_was_cut_is_compared_where_it_was_measured() -> None:
    bench = ExchangeBench(modes=("dgc", "ddp"))
    fast = {"none": 1.0, "dgc": 1.0}
    found = summarise(bench, rounds_of([{**fast, "ddp": 10.0}, {"none": 3.0, "dgc": 3.0}, fast]))
    assert found["modes"]["ddp"]["over_none"] == found["modes"]["ddp"]["cpu_over_none"] == 10.0
    assert found["modes"]["ddp"]["rounds"] == 1
