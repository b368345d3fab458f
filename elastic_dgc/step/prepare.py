"""From a virtual worker's gradient to u', v' and its packed message, in the other copies of its owned state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from elastic_dgc.compression.accumulate import Rule, accumulate
from elastic_dgc.compression.dgc import clear_sent, clip_factor, compress
from elastic_dgc.step.plan import Plan
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.row import Row
from elastic_dgc.step.settings import StepSettings
from elastic_dgc.step.sums import unpack_of


def gradient_factor(settings: StepSettings, global_count: int, row: Row) -> float:
    """What the gradient of this row is multiplied by: the loss scale taken out, from the mean over a full share to that
    over the whole step, clipped."""
    scale = settings.share / global_count / row.loss_scale
    if settings.compression.clip is None:
        return scale
    return scale * clip_factor(row.gradient_norm * scale, settings.compression.clip, settings.virtual_workers)


@torch.no_grad()
def accumulate_gradient(replica: Replica, density: float, global_count: int, row: Row, virtual_worker: int) -> None:
    """Scale, clip, weight decay, momentum: the other copies become u' and v', and nothing is taken out of them yet.
    `row` is this virtual worker's, `global_count` what the loss counts over all of them."""
    settings, layout = replica.settings, replica.layout
    one = replica.owned[virtual_worker]
    decay = settings.local_decay / settings.virtual_workers
    factor = gradient_factor(settings, global_count, row)
    rules = {
        vector: Rule(factor, 0.0 if vector and not settings.optimizer.decay_vectors else decay, settings.momentum)
        for vector in (False, True)
    }
    accumulate(
        layout, [rules[len(segment.shape) < 2] for segment in layout.segments], density, one.other_v,
        replica.weights_for_decay() if decay else replica.weights, one.u, one.v, one.other_u, one.other_v,
        replica.workspace, apart=replica.kept_of(virtual_worker),
    )  # fmt: skip


@torch.no_grad()
def prepare(
    replica: Replica, plan: Plan, global_count: int, rows: Mapping[int, Row] | Sequence[Row], which: Sequence[int]
) -> dict[int, bytes]:
    """These hosted virtual workers' other copies become u' and v'. Where the plan is sparse, what is to be sent is
    taken out of them: returns the packed messages. `rows` by virtual worker."""
    packed = {}
    for k in sorted(which):
        accumulate_gradient(replica, plan.density, global_count, rows[k], k)
        if not plan.whole:
            one = replica.owned[k]
            packed[k] = compress(
                replica.layout, plan.values, plan.density, one.other_u, one.other_v,
                replica.settings.compression.masking, replica.workspace,
            )  # fmt: skip
    return packed


@torch.no_grad()
def follow(replica: Replica, plan: Plan, global_count: int, row: Row, virtual_worker: int, message: bytes) -> None:
    """As `prepare`, but what was sent is known: exactly that is taken out, whatever would be selected here."""
    one = replica.owned[virtual_worker]
    accumulate_gradient(replica, plan.density, global_count, row, virtual_worker)
    sent = unpack_of(replica.layout, virtual_worker, message)
    clear_sent(replica.layout, sent, one.other_u, one.other_v, replica.settings.compression.masking)
