"""What the step needs to know of a run: one frozen object, the same on every worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from elastic_dgc.compression.accumulate import Momentum
from elastic_dgc.compression.config import CompressionConfig, Exchange
from elastic_dgc.precision.autocast import Precision
from elastic_dgc.precision.loss_scale import LossScale
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig


@dataclass(frozen=True)
class StepSettings:
    """`share`: samples of a virtual worker's full step; `identity`: 16 bytes that are equal where the settings are."""

    virtual_workers: int
    share: int
    steps_per_epoch: int
    epochs: int
    seed: int
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    compression: CompressionConfig
    exchange: Exchange = "dgc"
    require_compression: bool = False
    precision: Precision = "fp32"
    loss_scale: LossScale = field(default_factory=LossScale)
    max_skips: int = 3
    deadline_s: float = 1800.0
    identity: bytes = bytes(16)

    def lr(self, applied: int) -> float:
        """The learning rate of the step after `applied` applied ones."""
        return self.optimizer.lr * self.schedule.factor(applied, self.steps_per_epoch, self.epochs)

    def density(self, applied: int) -> float:
        """The density of the step after `applied` applied ones."""
        return 1.0 if self.exchange != "dgc" else self.compression.density_at(applied, self.steps_per_epoch)

    @property
    def momentum(self) -> Momentum | None:
        """Momentum correction's constants, or None for plain error feedback."""
        if not self.optimizer.momentum_correction or self.optimizer.momentum == 0:
            return None
        return Momentum(self.optimizer.momentum, self.optimizer.nesterov)

    @property
    def local_decay(self) -> float:
        """Weight decay that is added to the local gradient, before u (after the exchange it costs 2 % top-1:
        Paddle#21278). Other optimizers than sgd do their own."""
        return self.optimizer.weight_decay if self.optimizer.momentum_correction else 0.0


FaultHook = Callable[[str, int], None]
"""Called with (point, attempt) where a fault may be injected."""
