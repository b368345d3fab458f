"""How much residual is lost where no exact copy is left: an upper bound that every worker has without asking anybody.

||u|| and ||v|| of a virtual worker are nobody else's to measure, but what they can have grown to follows from the rows
of the votes, which everyone sees: a gradient adds at most its norm, and sending only takes away. Now and then a row has
the norm of v itself, which makes up for what the bound did not know of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from elastic_dgc.step.plan import Plan
from elastic_dgc.step.prepare import gradient_factor
from elastic_dgc.step.row import Row
from elastic_dgc.step.settings import StepSettings

SUMMED = 1e-9  # by value, what an fp32 sum of squares may lack: on a CPU torch loses 1 % of 25 million equal ones
ROUNDED = 1 + 1e-6  # what the fp32 additions of an attempt may add
BF16 = 2.0**-8  # the most of a value that bf16 rounds away


class MassBound:
    """Bounds of ||u|| and ||v|| by virtual worker, `u` and `v`: lists of K, 0 without momentum and at the start.

    Every worker has one and calls `decided` with each attempt. They are to be saved in checkpoints, and set anew where
    a virtual worker's state is put there by other means than attempts.
    """

    def __init__(
        self, settings: StepSettings, numel: int, u: Sequence[float] | None = None, v: Sequence[float] | None = None
    ) -> None:
        """`numel`: of the layout. `u`, `v`: the bounds at the checkpoint the run goes on from."""
        self._settings = settings
        self._measured = 1 + 1e-5 + numel * SUMMED  # makes a bound of a norm that was measured in fp32
        zeros = [0.0] * settings.virtual_workers
        self.u, self.v = list(u or zeros), list(v or zeros)
        for name, bounds in (("u", self.u), ("v", self.v)):
            if len(bounds) != len(zeros) or not all(bound >= 0 for bound in bounds):
                raise ValueError(f"{name} = {bounds}: must be {len(zeros)} bounds of 0 or more")

    def decided(self, rows: Sequence[Row], plan: Plan, committed: bool, weights_norm: float) -> None:
        """An attempt of this plan was decided. `rows` by virtual worker; `weights_norm`: of all trained weights before
        the attempt (read for weight decay only)."""
        for k, row in enumerate(rows):
            if math.isfinite(row.v_norm):  # of v before the attempt
                self.v[k] = row.v_norm * self._measured
        if not committed:
            return
        settings = self._settings
        count, momentum = sum(row.count for row in rows), settings.momentum
        decay = 0.0
        if settings.local_decay:  # else the norm may not be known
            decay = settings.local_decay / settings.virtual_workers * weights_norm * self._measured
        for k, row in enumerate(rows):
            gradient = row.gradient_norm * gradient_factor(settings, count, row) * self._measured + decay
            added = gradient
            if momentum is not None and momentum.nesterov:
                self.u[k] = momentum.factor * (self.u[k] + gradient) * ROUNDED
                added = self.u[k] + gradient
            elif momentum is not None:
                added = self.u[k] = (momentum.factor * self.u[k] + gradient) * ROUNDED
            self.v[k] = (self.v[k] + added) * ROUNDED
        if plan.whole:
            # What bf16 rounds away stays: of each v on its way there, of the sum with whoever adds it up.
            everything = sum(self.v) * (1 + BF16)
            self.v = [(v + everything) * BF16 * ROUNDED if plan.values == "bf16" else 0.0 for v in self.v]


def lost_mass_bound(v_bound: float, recovered_v: Tensor) -> float:
    """The most that ||v lost - v recovered|| can be: what was there at most, and what was put in its place."""
    return (v_bound + float(torch.linalg.vector_norm(recovered_v.detach(), dtype=torch.float64))) * ROUNDED
