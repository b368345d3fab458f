"""How the gradient of a step travels, sparse or whole, and why: a pure function of settings, layout and world size.

So every rank knows the size of every message before it is made, and one collective of fixed size carries them.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import promised_bytes
from elastic_dgc.compression.whole import say_small, why_whole
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
    reason = why_whole(config, layout, density, world, "ranks")
    if reason:
        return Plan(1.0, True, reason, 0)
    return Plan(density, False, "", PREFIX_BYTES + promised_bytes(layout, density, config.values) + SLACK_BYTES)


def explain(config: DGC, layout: Layout, world: int) -> list[str]:
    """What goes densely and why, in lines to be logged once; compression is never off unnoticed."""
    lines = say_small(config, layout)
    each = config.warmup_steps or 0
    schedule = [(i * each, density) for i, density in enumerate((*config.warmup, config.density))]
    seen = set()
    for applied, density in schedule:
        found = plan(config, layout, world, density)
        if found.whole and found.reason not in seen:
            seen.add(found.reason)
            lines.append(f"from step {applied} whole gradients are exchanged: {found.reason}")
    return lines
