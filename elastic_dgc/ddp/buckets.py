"""The buckets of one backward pass, seen through the layout: where each parameter's gradient lies in them.

DDP rebuilds its buckets after the first pass, so nothing about them outlives a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.futures import Future

from elastic_dgc.compression.dgc import add_message
from elastic_dgc.compression.layout import Layout
from elastic_dgc.errors import UsageError


@dataclass(frozen=True)
class Arrived:
    """One bucket whose gradients are ready: its memory, the parameters in it and their parts of it, in its order; and
    the future that DDP waits for."""

    buffer: Tensor
    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor]
    future: Future[Tensor]
    event: torch.cuda.Event | None  # on a GPU: when its gradients were written


class Buckets:
    """All buckets of a pass. `place`: from a parameter's `id` to its segment. `flat[i]`: the gradient of segment i as
    1-dim memory, in the parameter's own memory order (channels_last too); writing to it writes to the bucket. Raises
    `UsageError` where the buckets do not hold exactly the layout's parameters."""

    def __init__(self, layout: Layout, place: Mapping[int, int], arrived: Sequence[Arrived]) -> None:
        self._layout, self._arrived = layout, arrived
        self.buffers = [one.buffer for one in arrived]
        found: list[Tensor | None] = [None] * len(layout.segments)
        home, shift = [0] * len(layout.segments), [0] * len(layout.segments)
        for number, one in enumerate(arrived):
            start = int(one.buffer.storage_offset())
            for parameter, gradient in zip(one.parameters, one.gradients, strict=True):
                index = place.get(id(parameter))
                if index is None:
                    if parameter.requires_grad and parameter.numel():
                        raise UsageError(
                            f"DDP reduces a parameter of shape {tuple(parameter.shape)} that was frozen when DGC was "
                            f"attached: attach after the last requires_grad_(), to a DDP model built after it"
                        )
                    continue
                found[index] = gradient.view(-1)
                home[index] = number
                shift[index] = int(gradient.storage_offset()) - start - layout.segments[index].offset
        missing = [segment.name for segment, flat in zip(layout.segments, found, strict=True) if flat is None]
        if missing:
            raise UsageError(
                f"DDP does not reduce {missing[0]} ({len(missing)} parameters in all), which was unfrozen after DDP "
                f"was built: build DDP after the last requires_grad_(), then attach"
            )
        self.flat = [flat for flat in found if flat is not None]
        self._ends = torch.tensor([segment.offset + segment.numel for segment in layout.segments])
        self._home, self._shift = torch.tensor(home), torch.tensor(shift)

    def wait(self) -> None:
        """Let the present stream wait for the streams that wrote the gradients."""
        for one in self._arrived:
            if one.event is not None:
                one.event.wait()

    def fill(self, value: float) -> None:
        for buffer in self.buffers:
            buffer.fill_(value)

    def add(self, positions: Tensor, values: Tensor) -> None:
        """Add values at unique positions of the index space, both on the CPU."""
        segment = torch.bucketize(positions, self._ends, right=True)
        home, inside = self._home[segment], positions + self._shift[segment]
        counts = torch.bincount(home, minlength=len(self.buffers)).tolist()
        if len(counts) > 1:
            order = torch.argsort(home)
            inside, values = inside[order], values[order]
        device = self.buffers[0].device
        parts = zip(self.buffers, inside.to(device).split(counts), values.to(device).split(counts), strict=True)
        for buffer, where, what in parts:
            add_message(buffer, where, what)

    def write(self, low: int, values: Tensor) -> None:
        """Write a stretch of the index space that starts at `low`; `values` 1-dim on the parameters' device."""
        high = low + values.numel()
        for segment, flat in zip(self._layout.segments, self.flat, strict=True):
            first, last = max(low, segment.offset), min(high, segment.offset + segment.numel)
            if first < last:
                flat[first - segment.offset : last - segment.offset] = values[first - low : last - low]

    def deliver(self) -> None:
        """Hand every bucket back to DDP."""
        for one in self._arrived:
            one.future.set_result(one.buffer)
