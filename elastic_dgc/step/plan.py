"""How the gradient of a step travels: sparse or whole, and why. A pure function of schedule, layout and K."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_dgc.compression.config import Values
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import promised_bytes
from elastic_dgc.compression.whole import say_small, why_whole
from elastic_dgc.errors import CompressionOff
from elastic_dgc.step.settings import StepSettings


@dataclass(frozen=True)
class Plan:
    """`whole`: everything is sent, in `values`, and nothing masked; `reason` says why. Else `density` of each sparse
    tensor is sent, in `values`; `promised_bytes` bounds one virtual worker's packed message."""

    density: float
    values: Values
    whole: bool
    reason: str
    promised_bytes: int


def plan(settings: StepSettings, layout: Layout, applied: int) -> Plan:
    """The plan of the step after `applied` applied ones. Everything that contains a count of workers uses K."""
    density = settings.density(applied)
    values: Values = settings.compression.values
    if settings.exchange != "dgc":
        values = "bf16" if settings.exchange == "dense-bf16" else "fp32"
        return _whole(layout, values, f"exchange is '{settings.exchange}'")
    reason = why_whole(settings.compression, layout, density, settings.virtual_workers, "virtual workers")
    if reason:
        return _whole(layout, "fp32", reason)
    return Plan(density, values, False, "", promised_bytes(layout, density, values))


def _whole(layout: Layout, values: Values, reason: str) -> Plan:
    return Plan(1.0, values, True, reason, layout.numel * (2 if values == "bf16" else 4))


def explain(settings: StepSettings, layout: Layout) -> list[str]:
    """What goes densely and why, in lines to be logged once; empty where everything is sparse from the first step."""
    lines = say_small(settings.compression, layout) if settings.exchange == "dgc" else []
    seen = set()
    steps = [0, *(_starts(settings))]
    for applied in steps:
        found = plan(settings, layout, applied)
        if found.whole and found.reason not in seen:
            seen.add(found.reason)
            lines.append(f"from step {applied} whole gradients are exchanged: {found.reason}")
    return lines


def _starts(settings: StepSettings) -> list[int]:
    """The applied steps at which the density changes."""
    each = settings.compression.steps_each(settings.steps_per_epoch)
    return [each * (i + 1) for i in range(len(settings.compression.warmup))]


def ever_whole(settings: StepSettings, layout: Layout) -> bool:
    """Whether any step of the run exchanges whole gradients."""
    return any(plan(settings, layout, applied).whole for applied in (0, *_starts(settings)))


def require(settings: StepSettings, layout: Layout) -> None:
    """Raises `CompressionOff` where compression was required and the run's final density would not compress."""
    final = plan(settings, layout, max([0, *_starts(settings)]))
    if settings.require_compression and final.whole:
        raise CompressionOff(f"compression is required, but whole gradients would be exchanged: {final.reason}")
