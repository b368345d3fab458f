"""What an attempt does to the counters of shared state: one rule for those who took part and those who catch up."""

from __future__ import annotations

from elastic_dgc.step.settings import StepSettings
from elastic_dgc.step.state import Counters
from elastic_dgc.step.vote import Decision


def committed(
    counters: Counters, settings: StepSettings, decision: Decision, upload_bytes: int, dense_bytes: int
) -> None:
    """COMMIT. `upload_bytes`: the packed messages of all virtual workers (whole steps: their vectors); `dense_bytes`:
    what fp32 gradients would have taken. Changes `counters`, by the arguments alone."""
    counters.attempt += 1
    counters.applied += 1
    counters.skips_in_a_row = counters.hopeless_in_a_row = 0
    counters.loss_scale, counters.scale_tracker = settings.loss_scale.applied(
        counters.loss_scale, counters.scale_tracker
    )
    counters.samples += decision.samples
    counters.upload_bytes += upload_bytes
    counters.dense_bytes += dense_bytes


def skipped(counters: Counters, settings: StepSettings, overflowed: bool) -> None:
    """SKIP: nothing but these changes; the samples count as consumed. `overflowed`: the vote found a gradient that a
    smaller loss scale may mend; False for an update that would not be finite. Changes `counters`."""
    before, counters.scale_tracker = counters.loss_scale, 0
    if overflowed:
        counters.loss_scale = settings.loss_scale.overflowed(before)
    counters.attempt += 1
    counters.skipped += 1
    counters.skips_in_a_row += 1
    counters.hopeless_in_a_row += counters.loss_scale == before
