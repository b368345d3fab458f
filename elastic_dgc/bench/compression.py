"""`bench compression`: what compression costs on this machine, and what it leaves to be sent. One thread."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from pydantic import Field, field_validator

from elastic_dgc.bench import memory, networks, passes, sizes
from elastic_dgc.bench.figures import FEWEST_ROUNDS, Wanted, counted, or_about_zero, table
from elastic_dgc.bench.machine import machine, versions
from elastic_dgc.bench.steady import Steady
from elastic_dgc.compression.config import CompressionConfig, Values
from elastic_dgc.config import Config
from elastic_dgc.models import registry
from elastic_dgc.trainer.heap import keep_heap

MOST_PASS_RATIO, MOST_CODEC_SHARE = 1.8, 0.2
MOST_BITS = {"bf16": 30.0, "fp16": 30.0, "int8": 22.0}
LEAST_UPLOAD = {"bf16": 480.0, "dgc-max": 800.0}  # of ResNet-50 at density 0.001
HELD = ("owned", "scratch", "weights", "sum", "gradients", "other")


class CompressionBench(Config):
    """What is measured."""

    model: str = Field("resnet50", description="network whose tensors are compressed, ours or torchvision's")
    density: float = Field(0.001, gt=0, lt=1, description="share of every large tensor that is sent")
    rounds: int = Field(9, ge=1, description="rounds; medians are over them")
    values: Values = Field("bf16", description="value type in the timed pass")
    warm_steps: int = Field(12, ge=1, description="steps that bring u and v into a steady state first")

    @field_validator("model")
    @classmethod
    def _known(cls, value: str) -> str:
        registry.check_name(value)
        return value


def measure(bench: CompressionBench) -> dict[str, Any]:
    """Run the benchmark in this process, which is left with one torch thread. Half a minute for ResNet-50."""
    torch.set_num_threads(1)
    keep_heap()
    named = [(name, one.detach()) for name, one in networks.build(bench.model, device="meta").named_parameters()]
    layout = sizes.layout_of(named, CompressionConfig())
    steady = Steady(layout, bench.density, bench.warm_steps)
    for number in range(2):  # first calls fault memory in
        passes.time_round(steady, bench.values, number)
    before = machine()["load"]
    rounds = [passes.time_round(steady, bench.values, number) for number in range(bench.rounds)]
    result: dict[str, Any] = {
        **bench.model_dump(),
        "parameters": layout.numel,
        **passes.summarise(rounds, bench.values),
        "bits_per_entry": sizes.packed_bits(steady),
        "upload_ratio": sizes.upload_ratios(bench.density, dict.fromkeys([*sizes.MODELS, bench.model])),
        "message_bytes": sizes.packed_against_promised(named, steady, bench.warm_steps),
    }
    del steady
    result["maxima_per_parameter"] = memory.maxima_per_parameter(layout, bench.density)
    make = partial(networks.build, bench.model)
    result["memory"] = {
        "trainer": memory.trainer_values(make, bench.density), "DDP hook": memory.hook_values(make, bench.density),
    }  # fmt: skip
    result["machine"] = {**machine(), "load": [before, machine()["load"]], **versions()}
    result["wanted"] = [one.as_json() for one in wanted(result)]
    return result


def wanted(result: dict[str, Any]) -> list[Wanted]:
    """The figures that have a limit. Times and bytes are promised for ResNet-50 at density 0.001; u and v always, and
    scratch where the network is large enough."""
    found = []
    if result["model"] == "resnet50" and result["density"] == 0.001:
        bits, ratios = result["bits_per_entry"], result["upload_ratio"]["resnet50"]
        found += [Wanted("pass_ratio", result["pass_ratio"], MOST_PASS_RATIO)]
        found += [Wanted(f"codec_share {kind}", one, MOST_CODEC_SHARE) for kind, one in result["codec_share"].items()]
        found += [Wanted(f"bits_per_entry {kind}", bits[kind], most) for kind, most in MOST_BITS.items()]
        found += [
            Wanted(f"upload_ratio resnet50 {preset}", ratios[preset], least, at_most=False)
            for preset, least in LEAST_UPLOAD.items()
        ]
    for who, most in memory.MOST_OWNED.items():
        held, limit = result["memory"][who], _most_scratch(result, who)
        found.append(Wanted(f"fp32 values of u and v per parameter, {who}", held["owned"], most))
        if limit is not None:
            found.append(Wanted(f"scratch per parameter, {who}", held["scratch"], limit))
    return found


def _most_scratch(result: dict[str, Any], who: str) -> float | None:
    return memory.most_scratch(who, result["parameters"], result["maxima_per_parameter"])


def _unlimited(result: dict[str, Any]) -> list[str]:
    """Whose scratch has no limit here, and why."""
    return [
        f"scratch per parameter, {who} {held['scratch']:g}: no limit for so small a network, the fixed block dominates"
        for who, held in result["memory"].items()
        if _most_scratch(result, who) is None
    ]


def shares_of(result: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """The codec's shares for the table, marked where they are none to go by, and what the mark means."""
    shares, few = result["codec_share"], result["rounds"] < FEWEST_ROUNDS
    cells = {kind: f"{one}{' *' if few or one > 1 else ''}" for kind, one in shares.items()}
    reasons = []
    if few:
        reasons.append(f"of {counted(result['rounds'], 'round')}, fewer than {FEWEST_ROUNDS}: may be noise")
    if max(shares.values()) > 1:
        reasons.append("over 1: both take longer than 'all', of which decode is no part")
    return cells, [f"(*: {'; '.join(reasons)})"] if reasons else []


def report(result: dict[str, Any]) -> str:
    """The result for a reader."""
    on, times, bits = result["machine"], result["ms"], result["bits_per_entry"]
    kind = result["values"]
    low, high = result["pass_ratio_range"]
    momenta = result["pass_ratio_by_momentum"]
    shares, marks = shares_of(result)
    lines = [
        f"{result['model']}, {result['parameters']} parameters, density {result['density']:g}, medians of "
        f"{counted(result['rounds'], 'round')}; {on['cpu']}, {counted(on['cores'], 'core')}, load {on['load'][0]} to "
        f"{on['load'][1]}, torch {on['torch']}, one thread",
        "",
        table(
            ("pass, ms", "eager", "all", "ratio"),
            [(name, times[f"eager {name}"], times[f"all {name}"], momenta[name]) for name in passes.MOMENTA],
        ),
        f"'all' is accumulation, exact selection, clearing and a packed message of {kind} values; 'eager' the same "
        f"arithmetic as whole-tensor passes. Ratio of plain momentum by round: {low} to {high}; by processor time "
        f"{result['pass_ratio_cpu']}",
        "",
        table(
            ("part of 'all' (plain), ms", ""),
            [(name, times[name]) for name in ("accumulate", "select")]
            + [("clear and mask", or_about_zero(times["clear and mask"])), ("encode", times[f"encode {kind}"])],
        ),
        "(clear and mask is what is left of 'all' without the others. Decode is none of its parts, but the receivers': "
        "once for each message that arrives)",
        "",
        table(
            ("values", "bits per entry", "encode ms", "decode ms", "both to 'all'"),
            [(one, bits[one], times[f"encode {one}"], times[f"decode {one}"], shares[one]) for one in bits],
        ),
        *marks,
        "",
        table(
            ("upload ratio", *sizes.PRESETS),
            [(model, *(ratios[preset] for preset in sizes.PRESETS)) for model, ratios in result["upload_ratio"].items()]
            + [(f"{result['model']}, bytes packed", *(one["packed"] for one in result["message_bytes"].values()))]
            + [(f"{result['model']}, bytes promised", *(one["promised"] for one in result["message_bytes"].values()))],
        ),
        "",
        table(
            ("fp32 values per parameter", *HELD),
            [(who, *(held.get(part) for part in HELD)) for who, held in result["memory"].items()],
        ),
        "(owned: u, v and their other buffers, for each virtual worker; the others once a worker)",
        "",
        *(Wanted(one["name"], one["value"], one["limit"], one["at_most"]).line() for one in result["wanted"]),
        *_unlimited(result),
    ]
    return "\n".join(lines)
