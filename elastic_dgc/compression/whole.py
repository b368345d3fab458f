"""What is not compressed, and why, in words: one rule for the trainer's virtual workers and for DDP's ranks."""

from __future__ import annotations

from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import promised_bytes


def why_whole(config: CompressionConfig, layout: Layout, density: float, messages: int, senders: str) -> str:
    """Why a step at this density exchanges whole gradients; '' where it is sparse. `messages` of so many `senders`
    ('ranks', say) reach everyone; a dense exchange moves every gradient twice, as a ring all-reduce does."""
    if density >= 1:
        return "the schedule's density is 1"
    if not layout.sparse:
        return f"no tensor has two dimensions and at least {config.min_numel} elements (min_numel)"
    ratio = promised_bytes(layout, density, config.values) * messages / (2 * 4 * layout.numel)
    if ratio > 1:
        return f"at density {density:g} the messages of {messages} {senders} are {ratio:.2g} times a dense exchange"
    return ""


def say_small(config: CompressionConfig, layout: Layout) -> list[str]:
    """A line about the tensors that travel whole inside every message, if there are any beside sparse ones."""
    if not layout.sparse or not layout.dense_numel:
        return []
    tensors = len(layout.segments) - len(layout.sparse)
    return [
        f"{tensors} of {len(layout.segments)} tensors ({layout.dense_numel / layout.numel:.1%} of the parameters) "
        f"travel whole inside every message: fewer than two dimensions or under {config.min_numel} elements"
    ]
