"""Parameters that no rank used in a pass: DDP leaves their `grad` alone, but the residual may hold something for them.

Their gradient counts as zero: momentum and weight decay go on and what is pending is sent, as torch's SGD does after
`zero_grad(set_to_none=False)`. What was sent has left the residual, so it has to reach `grad`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


def give_to_unused(ddp: DistributedDataParallel | None, parameters: Sequence[Tensor], flat: Sequence[Tensor]) -> None:
    """Once DDP has finished this pass, give the sum (1-dim, in the parameter's memory order) to every parameter whose
    `grad` it did not set. Only where DDP may leave one out; where nothing was sent for it either, `grad` stays None."""
    if ddp is None or not (ddp.find_unused_parameters or ddp.static_graph):
        return
    as_view = ddp.gradient_as_bucket_view

    @torch.no_grad()
    def give() -> None:
        for parameter, sums in zip(parameters, flat, strict=True):
            view = sums.as_strided(parameter.shape, parameter.stride(), sums.storage_offset())
            if parameter.grad is None:
                if bool(view.any()):
                    parameter.grad = view if as_view else view.clone()
            elif parameter.grad.data_ptr() != view.data_ptr():
                parameter.grad.copy_(view)

    # DDP queues its own callback, which sets `grad`, after this hook; one that is queued from a callback comes later.
    queue = torch.autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(give))
