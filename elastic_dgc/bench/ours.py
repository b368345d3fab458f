"""Our side: whole attempts (vote, exchange over TCP, apply), K = the number of workers, past the density's warm-up."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from elastic_dgc.bench.modes import Mode
from elastic_dgc.bench.sizes import layout_of
from elastic_dgc.bench.torch_sides import LR, MOMENTUM, WEIGHT_DECAY, Batch
from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.errors import Diverged
from elastic_dgc.step.attempt import attempt
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.settings import StepSettings
from elastic_dgc.step.total import Total
from elastic_dgc.trainer.group import Group

PARTS = ("compute", "vote", "compress", "exchange", "apply")


def settings_of(mode: Mode, workers: int, share: int, density: float, deadline_s: float) -> StepSettings:
    """The settings of a run in this mode, with one virtual worker for each worker."""
    return StepSettings(
        workers, share, steps_per_epoch=1 << 30, epochs=1, seed=0,
        optimizer=OptimizerConfig(lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
        schedule=ScheduleConfig(kind="constant"),
        compression=CompressionConfig(density=density, warmup=(), **mode.fields),
        exchange=mode.exchange, deadline_s=deadline_s,
    )  # fmt: skip


def loss_of(model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
    return F.cross_entropy(model(batch[0]), batch[1]), len(batch[1])


class Ours:
    """One mode of ours. All modes share one replica, five vectors of the model's size: each step brings its own
    settings, layout and place for the sum. What is in u and v matters to no step's time."""

    def __init__(self, group: Group, replica: Replica, settings: StepSettings, total: Total) -> None:
        self._group, self._replica, self._settings, self._total = group, replica, settings, total
        self._layout = layout_of(replica.trained.items(), settings.compression)
        self._sent = 0

    def step(self, batch: Batch) -> dict[str, float]:
        """One committed attempt. Returns its seconds by part. Raises `Diverged` where it was skipped."""
        group, replica, transport = self._group, self._replica, self._group.transport
        replica.settings, replica.layout, replica.total = self._settings, self._layout, self._total
        number, before = max(group.attempt, 0), transport.bytes_sent
        replica.counters.attempt = number  # all modes count on, so that no key is used twice on this transport
        micro = [MicroBatch(batch, len(batch[1]))]
        outcome = group.run(attempt(replica, group.members, lambda _: micro, loss_of))
        if not outcome.committed:
            raise Diverged(f"a step of the benchmark was skipped: {'; '.join(outcome.reasons)}")
        transport.forget(number)
        group.attempt = number + 1
        self._sent = transport.bytes_sent - before
        return {name: outcome.seconds[name] for name in PARTS}

    def sent_bytes(self) -> int:
        """Bytes that were handed to the transport in the last step, by this worker."""
        return self._sent
