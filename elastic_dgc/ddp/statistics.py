"""Buffers that the forward pass changes in training mode, BatchNorm's running statistics above all.

The vote comes after the forward pass, so a step that it refuses has changed them already. What they were before the
step's first pass is kept, and put back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


class Statistics:
    """A copy of all buffers of a DDP model, taken before the first forward pass of a step (the first micro-batch's)
    that is in training mode and records a graph. `taken`: there is one; it belongs to the step that comes.

    Taken before DDP broadcasts rank 0's buffers, so every rank gets back what it had.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        """Registers a forward pre-hook where the model has buffers."""
        self._modules = [module for module in ddp.module.modules() if module._buffers]
        self._places: list[tuple[dict[str, Tensor | None], str, Tensor | None]] = []
        self._live: list[Tensor] = []
        self._copies: list[Tensor] = []
        self.taken = False
        if self._modules:
            ddp.register_forward_pre_hook(self._before_forward)

    def _before_forward(self, ddp: Any, _: Any) -> None:
        if not self.taken and ddp.module.training and torch.is_grad_enabled():
            self.take()

    def take(self) -> None:
        """Copy what the buffers are now."""
        found = [(one._buffers, name, buffer) for one in self._modules for name, buffer in one._buffers.items()]
        # An expanded buffer has less memory than elements: nothing can change it in place.
        live = [one.data for *_, one in found if one is not None and not _is_expanded(one)]
        if [_kind(one) for one in live] == [_kind(one) for one in self._copies]:
            torch._foreach_copy_(self._copies, live)
        else:
            self._copies = [one.clone() for one in live]
        self._places, self._live, self.taken = found, live, True

    def drop(self) -> None:
        """The step counts, or another state was loaded: what was before it is past."""
        self._places, self._live, self.taken = [], [], False

    def put_back(self) -> None:
        """Make the buffers bitwise what they were, in the same memory. Through `data`: a graph that is still there
        does not take it for a change of what it saved."""
        if self._live:
            torch._foreach_copy_(self._live, self._copies)
        for held, name, buffer in self._places:
            held[name] = buffer  # a forward pass may have put another tensor in its place
        self.drop()

    def put_back_after_backward(self) -> None:
        """The same once the present backward pass is over: it may still read buffers, or run a forward pass again."""
        if self.taken:
            torch.autograd.Variable._execution_engine.queue_callback(self.put_back)


def _is_expanded(buffer: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(buffer.stride(), buffer.shape, strict=True))


def _kind(buffer: Tensor) -> tuple[Any, ...]:
    return buffer.shape, buffer.dtype, buffer.device
