"""Bytes: of messages as they are packed, and as the format promises them for other networks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from elastic_dgc.bench import networks
from elastic_dgc.bench.steady import PLAIN, Steady
from elastic_dgc.compression import values as wire
from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import KINDS, promised_bytes, unpack
from elastic_dgc.errors import Disagreement

MODELS = ("resnet50", "resnet18", "vgg16", "alexnet", "mobilenet_v3_small", "resnet20")
PRESETS: dict[str, dict[str, Any]] = {
    "fp32": {}, "bf16": {"values": "bf16"}, "int8": {"values": "int8"}, "dgc-max": {"preset": "dgc-max"},
}  # fmt: skip
FP32_BYTES = 4


def layout_of(named: Iterable[tuple[str, Tensor]], compression: CompressionConfig) -> Layout:
    """The layout a run with these settings has. Tensors may be on the meta device."""
    return Layout.of(named, compression.min_numel, compression.small_density, compression.small_floor)


def bits_per_entry(layout: Layout, message: bytes, kind: str) -> float:
    """Everything in a message but the dense tensors' values, header and checksum included, by its sparse entries."""
    entries = unpack(layout, message).positions.numel() - layout.dense_numel
    dense = wire.size(kind, layout.dense_numel)  # type: ignore[arg-type]
    return round(8 * (len(message) - dense) / entries, 2)


def packed_bits(steady: Steady) -> dict[str, float]:
    """`bits_per_entry` of really packed messages, by value type."""
    return {kind: bits_per_entry(steady.layout, steady.step(PLAIN, kind), kind) for kind in KINDS}


def upload_ratios(density: float, models: Iterable[str] = MODELS) -> dict[str, dict[str, float]]:
    """4 * parameters / bytes of a message, everything counted, by network and preset: as the format promises them.
    Parameters take no memory here."""
    return {model: _ratios(list(networks.build(model, device="meta").named_parameters()), density) for model in models}


def _ratios(named: list[tuple[str, Tensor]], density: float) -> dict[str, float]:
    found = {}
    for preset, fields in PRESETS.items():
        compression = CompressionConfig(density=density, **fields)
        layout = layout_of(named, compression)
        found[preset] = round(FP32_BYTES * layout.numel / promised_bytes(layout, density, compression.values), 1)
    return found


def packed_against_promised(
    named: Sequence[tuple[str, Tensor]], steady: Steady, warm_steps: int
) -> dict[str, dict[str, int]]:
    """Bytes of a really packed message by preset, beside those that were promised for it.

    `steady` serves the presets that have its layout; others get their own. Raises `Disagreement` where more was packed
    than promised: then the ratios would not be true.
    """
    found = {}
    for preset, fields in PRESETS.items():
        compression = CompressionConfig(density=steady.density, **fields)
        layout = layout_of(named, compression)
        one = steady if layout == steady.layout else Steady(layout, steady.density, warm_steps)
        packed, promised = (
            len(one.step(PLAIN, compression.values)),
            promised_bytes(layout, one.density, compression.values),
        )
        if packed > promised:
            raise Disagreement(f"preset {preset} packed {packed} bytes where the format promises {promised} at most")
        found[preset] = {"packed": packed, "promised": promised}
    return found
