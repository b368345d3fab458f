"""u, v and a gradient as they are in the middle of a training, for real tensors.

Timing a selection on normal noise would flatter or slander it: residuals are heavy-tailed, differ between tensors, and
what was sent lately is near zero. So some steps of DGC run first, on gradients whose scale differs by coordinate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elastic_dgc.compression.accumulate import Momentum, Rule, Workspace, accumulate
from elastic_dgc.compression.config import Values
from elastic_dgc.compression.dgc import compress
from elastic_dgc.compression.layout import Layout

DECAY, FACTOR, WORKERS = 1e-4, 0.9, 4
SCALE = 1.0 / 1024  # unscaling and the clip factor in one; a power of two, as loss scales are
PLAIN = Momentum(FACTOR)


class Steady:
    """Vectors fp32[numel] of one virtual worker: `g`, `w`, `u`, `v`, and `u2`, `v2` where the next ones go.

    `u` and `v` do not change after construction, so a pass from them into the others can be repeated at will.
    """

    def __init__(self, layout: Layout, density: float, warm_steps: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal() -> Tensor:
            return torch.randn(layout.numel, generator=generator)

        self.layout, self.density, self.workspace = layout, density, Workspace()
        self.w = normal().mul_(0.05)
        self._scratch = torch.zeros(layout.numel)
        self.u, self.v, self.u2, self.v2 = (torch.zeros(layout.numel) for _ in range(4))
        spread = normal().exp_()  # log-normal: a coordinate's typical gradient
        for segment in layout.segments:
            spread[segment.offset : segment.offset + segment.numel] *= segment.numel**-0.5
        spread /= SCALE
        for _ in range(warm_steps):
            self.g = normal().mul_(spread)
            self.step(PLAIN, "fp32")
            self.u, self.v, self.u2, self.v2 = self.u2, self.v2, self.u, self.v
        self.g = normal().mul_(spread)

    def accumulate(self, momentum: Momentum | None = PLAIN) -> None:
        """Into u2 and v2, and the workspace."""
        rules = [Rule(SCALE, DECAY / WORKERS, momentum)] * len(self.layout.segments)
        u, u2 = (None, None) if momentum is None else (self.u, self.u2)
        accumulate(self.layout, rules, self.density, self.g, self.w, u, self.v, u2, self.v2, self.workspace)

    def step(self, momentum: Momentum | None, kind: Values) -> bytes:
        """The whole pass: accumulation, exact selection, clear, mask, and the packed message."""
        self.accumulate(momentum)
        u2 = None if momentum is None else self.u2
        return compress(self.layout, kind, self.density, u2, self.v2, True, self.workspace)

    def eager(self, momentum: Momentum | None) -> None:
        """The same arithmetic as whole-tensor passes, without selection: what the pass is held against."""
        scratch = torch.add(self.g, self.w, alpha=DECAY / WORKERS, out=self._scratch)
        if momentum is None:
            torch.add(self.v, scratch, out=self.v2)
        elif momentum.nesterov:
            torch.add(self.u, scratch, out=self.u2).mul_(momentum.factor)
            torch.add(self.v, self.u2, out=self.v2).add_(scratch)
        else:
            torch.add(scratch, self.u, alpha=momentum.factor, out=self.u2)
            torch.add(self.v, self.u2, out=self.v2)
