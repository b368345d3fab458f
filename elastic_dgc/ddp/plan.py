"""How the gradient of a step travels, sparse or whole, and why: a pure function of settings, layout and world size.

So every rank knows the size of every message before it is made, and one collective of fixed size carries them.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import promised_bytes
from elastic_dgc.ddp.config import DGC

PREFIX_BYTES = 8  # a message's length, before it
SLACK_BYTES = 8  # positions of a few entries less can take a byte more


@dataclass(frozen=True)
class Plan:
    """`whole`: all of v is summed and cleared, u stays, nothing is masked; `reason` says why. Else every rank's message
    travels in `gather_bytes`, padded."""

    density: float
    whole: bool
    reason: str
    gather_bytes: int


def plan(config: DGC, layout: Layout, world: int, density: float) -> Plan:
    """The plan of a step at this density."""
    if density >= 1:
        return Plan(1.0, True, "the schedule's density is 1", 0)
    if not layout.sparse:
        return Plan(1.0, True, f"no tensor has two dimensions and at least {config.min_numel} elements (min_numel)", 0)
    promised = promised_bytes(layout, density, config.values)
    dense = 2 * 4 * layout.numel  # a ring all-reduce moves every gradient twice
    if promised * world > dense:
        ratio = promised * world / dense
        reason = f"at density {density:g} the messages of {world} ranks are {ratio:.2g} times a dense exchange"
        return Plan(1.0, True, reason, 0)
    return Plan(density, False, "", PREFIX_BYTES + promised + SLACK_BYTES)


def explain(config: DGC, layout: Layout, world: int) -> list[str]:
    """What goes densely and why, in lines to be logged once; compression is never off unnoticed."""
    lines = []
    if layout.sparse and layout.dense_numel:
        tensors = len(layout.segments) - len(layout.sparse)
        lines.append(
            f"{tensors} of {len(layout.segments)} tensors ({layout.dense_numel / layout.numel:.1%} of the parameters) "
            f"travel whole inside every message: fewer than two dimensions or under {config.min_numel} elements"
        )
    each = config.warmup_steps or 0
    schedule = [(i * each, density) for i, density in enumerate((*config.warmup, config.density))]
    seen = set()
    for applied, density in schedule:
        found = plan(config, layout, world, density)
        if found.whole and found.reason not in seen:
            seen.add(found.reason)
            lines.append(f"from step {applied} whole gradients are exchanged: {found.reason}")
    return lines
