"""u and v of one rank: two fp32 values a parameter, flat over the layout, and what a step does to them in place.

In place, and not on a second copy that flips as in the trainer, because memory is what DDP's users are short of. What
a failed exchange must undo is little: the message is put back into v, and u is masked only after the exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from elastic_dgc.compression.accumulate import BLOCK, Rule, Workspace, accumulate_block
from elastic_dgc.compression.config import Values
from elastic_dgc.compression.dgc import add_message, compress
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import Message
from elastic_dgc.compression.select import group_maxima, group_size
from elastic_dgc.errors import UsageError

SCRATCH_SHARE = 100  # a block is at most a 100th of a vector, where that is large enough to be worth a call
LEAST_BLOCK, ALIGNMENT = 1 << 16, 64  # elements; a multiple of every group's size
GPU_BLOCK = 1 << 22


class Residual:
    """`u` (None without momentum) and `v`: fp32[numel], each parameter's part in the parameter's memory order."""

    def __init__(self, layout: Layout, trained: Mapping[str, Tensor], with_momentum: bool) -> None:
        """`trained`: the parameters, by name, in the layout's order."""
        self.layout, self.parameters = layout, list(trained.values())
        self.device = self.parameters[0].device
        self.v = torch.zeros(layout.numel, device=self.device)
        self.u = torch.zeros(layout.numel, device=self.device) if with_momentum else None
        self._strides = [parameter.stride() for parameter in self.parameters]
        most = BLOCK if self.device.type == "cpu" else GPU_BLOCK
        size = max(LEAST_BLOCK, min(most, layout.numel // SCRATCH_SHARE))
        self.block = -(-size // ALIGNMENT) * ALIGNMENT
        self._workspace, self._density = Workspace(self.device), 1.0

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Every parameter's part of `u` or `v`, by name, in the parameter's shape."""
        return {
            s.name: flat.as_strided(s.shape, strides, s.offset)
            for s, strides in zip(self.layout.segments, self._strides, strict=True)
        }

    def check_parameters(self) -> None:
        """Raises `UsageError` if a parameter was frozen, or its memory format is another than it was."""
        for segment, parameter, strides in zip(self.layout.segments, self.parameters, self._strides, strict=True):
            if not parameter.requires_grad:
                raise UsageError(
                    f"{segment.name} was frozen after attach: build DDP and attach anew, with a new optimizer, after "
                    f"the last requires_grad_()"
                )
            if parameter.stride() != strides:
                raise UsageError(
                    f"the memory format of {segment.name} changed after attach (strides {strides}, now "
                    f"{parameter.stride()}): call model.to(memory_format=...) before DDP and attach"
                )

    def accumulate(self, gradients: Sequence[Tensor], rules: Sequence[Rule], density: float) -> None:
        """The step's gradients enter u and v. `gradients[i]`: 1-dim memory of segment i, which becomes scratch.

        With a density below 1 the workspace then holds what `message` needs."""
        if density != self._density:
            self._workspace, self._density = Workspace(self.device), density  # smaller densities need less of it
        if density < 1:
            self._workspace.prepare(self.layout.segments, density)
        for segment, parameter, gradient, rule in zip(
            self.layout.segments, self.parameters, gradients, rules, strict=True
        ):
            weights = parameter.detach().as_strided((segment.numel,), (1,))
            maxima = self._workspace.maxima(segment) if density < 1 else None
            group = group_size(segment.numel, segment.count(density))
            for low in range(0, segment.numel, self.block):
                high = min(segment.numel, low + self.block)
                g, place = gradient[low:high], slice(segment.offset + low, segment.offset + high)
                u, v = None if self.u is None else self.u[place], self.v[place]
                accumulate_block(rule, g, weights[low:high], u, v, u, v, g, self._workspace)
                if maxima is not None:
                    group_maxima(v, group, maxima[low // group : high // group], self._workspace.block(high - low))

    def message(self, kind: Values, density: float) -> bytes:
        """The packed message, taken out of v. u is masked later, by `mask`."""
        return compress(self.layout, kind, density, self.u, self.v, False, self._workspace)

    def put_back(self, said: Message) -> None:
        """What a message took out of v comes back: it did not arrive."""
        add_message(self.v, said.positions.to(self.device), said.values.to(self.device))

    def mask(self, said: Message) -> None:
        """Momentum factor masking (section 3.3): what was sent loses its momentum; dense tensors and what was rounded
        to nothing do not."""
        if self.u is not None:
            dense = self.layout.dense_numel
            self.u[said.positions[dense:][said.values[dense:] != 0].to(self.device)] = 0

    def chunks(self) -> Iterator[tuple[int, Tensor]]:
        """(start, copy) of v, stretch by stretch; the copy is scratch that the next one overwrites."""
        for low in range(0, self.layout.numel, self.block):
            part = self.v[low : low + self.block]
            yield low, self._workspace.block(part.numel()).copy_(part)
