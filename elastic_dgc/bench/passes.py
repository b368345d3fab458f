"""Milliseconds of one compression, part by part, against eager passes over the same vectors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from elastic_dgc.bench.figures import median_ratio, ms
from elastic_dgc.bench.steady import FACTOR, PLAIN, Steady
from elastic_dgc.compression import values as wire
from elastic_dgc.compression.accumulate import Momentum
from elastic_dgc.compression.config import Values
from elastic_dgc.compression.dgc import select
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import KINDS, pack, unpack

MOMENTA: dict[str, Momentum | None] = {"plain": PLAIN, "nesterov": Momentum(FACTOR, nesterov=True), "none": None}
T = TypeVar("T")
Round = dict[str, tuple[float, float]]


def time_round(steady: Steady, kind: Values, number: int) -> Round:
    """(seconds, processor seconds of this thread) of every part, once. Who comes first rotates with the round."""
    took: Round = {}

    def timed(name: str, do: Callable[..., T], *given: Any) -> T:
        start, cpu = time.perf_counter(), time.thread_time()
        result = do(*given)
        took[name] = time.perf_counter() - start, time.thread_time() - cpu
        return result

    def parts() -> None:
        timed("accumulate", steady.accumulate)
        layout = steady.layout
        positions = timed("select", select, layout, steady.v2, steady.density, steady.workspace)
        values = steady.v2[torch.cat([layout.dense_positions, positions])]
        for one in KINDS:
            data = timed(f"encode {one}", _encode, layout, one, values, positions)
            timed(f"decode {one}", unpack, layout, data)

    tasks: list[Callable[[], Any]] = [parts]
    for name, momentum in MOMENTA.items():
        tasks.append(partial(timed, f"eager {name}", steady.eager, momentum))
        tasks.append(partial(timed, f"all {name}", steady.step, momentum, kind))
    for shift in range(len(tasks)):
        tasks[(number + shift) % len(tasks)]()
    return took


def _encode(layout: Layout, kind: Values, values: Tensor, positions: Tensor) -> bytes:
    return pack(layout, kind, wire.encode(values, kind), positions)


def summarise(rounds: list[Round], kind: Values) -> dict[str, Any]:
    """Medians over the rounds: `pass_ratio` (plain momentum) with its range, the same by processor time, the other
    kinds of momentum, `codec_share` by value type, and `ms` by part."""

    def median(name: str) -> float:
        return statistics.median(one[name][0] for one in rounds)

    def ratio(name: str, clock: int) -> tuple[float, list[float]]:
        return median_ratio((one[f"all {name}"][clock], one[f"eager {name}"][clock]) for one in rounds)

    pass_ratio, pass_range = ratio("plain", 0)
    codec = {
        one: median_ratio(
            (r[f"encode {one}"][0] + r[f"decode {one}"][0], r["all plain"][0]) for r in rounds
        )[0]
        for one in KINDS
    }  # fmt: skip
    rest = ("accumulate", "select", f"encode {kind}")
    parts = {name: ms(median(name)) for name in rounds[0]}
    clear = statistics.median(r["all plain"][0] - sum(r[name][0] for name in rest) for r in rounds)
    return {
        "pass_ratio": pass_ratio,
        "pass_ratio_range": pass_range,
        "pass_ratio_cpu": ratio("plain", 1)[0],
        "pass_ratio_by_momentum": {name: ratio(name, 0)[0] for name in MOMENTA},
        "codec_share": codec,
        "ms": {**parts, "clear and mask": ms(clear)},
        "values": kind,
    }
