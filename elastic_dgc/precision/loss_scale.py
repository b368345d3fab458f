"""The loss scale of fp16: shared state, changed by the vote alone, so it is equal on all workers.

fp16 holds nothing below 6e-8; the loss is multiplied by the scale so that small gradients survive, and they are divided
by it in fp32 before anything is accumulated. Powers of two, so that this rounds nothing. (Micikevicius et al., ICLR
2018; constants as in `torch.amp.GradScaler`, with a floor and a cap that it lacks: apex#318, DeepSpeed#753.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the settings of a run use this module, and the command line's help waits for no torch
    from elastic_dgc.precision.autocast import Precision

INITIAL = 2.0**16
FLOOR = 1.0
CAP = 2.0**24


@dataclass(frozen=True)
class LossScale:
    """How the scale moves: doubled after `growth_every` applied attempts in a row, halved by an overflow, within
    `FLOOR` and `CAP`. A `growth_every` of 0: it stays at `initial`."""

    initial: float = 1.0
    growth_every: int = 0

    @staticmethod
    def of(precision: Precision, fixed: float | None) -> LossScale:
        """What a precision needs: a moving scale for fp16, else 1; or a fixed one where the user chose so."""
        if fixed is not None:
            return LossScale(fixed)
        return LossScale(INITIAL, growth_every=2000) if precision == "fp16" else LossScale()

    def applied(self, scale: float, tracker: int) -> tuple[float, int]:
        """Scale and tracker (applied attempts since the scale last moved) after an attempt was applied."""
        if not self.growth_every or scale >= CAP:
            return scale, 0
        tracker += 1
        return (2.0 * scale, 0) if tracker >= self.growth_every else (scale, tracker)

    def overflowed(self, scale: float) -> float:
        """The scale after an overflow: half, unless it is fixed or at its floor."""
        return max(FLOOR, scale / 2) if self.growth_every else scale


def is_power_of_two(value: float) -> bool:
    """Whether multiplying by a positive value only shifts the exponent."""
    return value > 0 and math.isfinite(value) and math.frexp(value)[0] == 0.5
