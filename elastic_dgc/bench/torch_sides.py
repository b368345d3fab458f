"""What our step is held against: torch's own SGD without any exchange, and DistributedDataParallel with its hooks.

Our hook for DDP is among these: all but the exchange is DDP's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from elastic_dgc.bench.modes import POWERSGD_START, Mode
from elastic_dgc.ddp import DGC, DGCState, attach

LR, MOMENTUM, WEIGHT_DECAY = 1e-3, 0.9, 1e-4
Batch = tuple[Tensor, Tensor]


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)


class NoExchange:
    """The step without any exchange: what computation alone takes."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._optimizer = model.train(), _optimizer(model)

    def step(self, batch: Batch) -> dict[str, float]:
        self._optimizer.zero_grad()
        F.cross_entropy(self._model(batch[0]), batch[1]).backward()
        self._optimizer.step()
        return {}

    def sent_bytes(self) -> int:
        return 0


class DDP:
    """DistributedDataParallel as in torch's tutorial. `model` must be equal on all workers; `density` is our hook's.

    To be made by all workers at the same time."""

    def __init__(self, model: nn.Module, mode: Mode, density: float) -> None:
        self._parameters = sum(one.numel() for one in model.parameters())
        self._buffers_bytes = sum(one.nbytes for one in model.buffers())
        self._value_bytes = 2 if mode.hook == "bf16" else 4
        options: dict[str, Any] = {"gradient_as_bucket_view": True, "init_sync": False}
        self._power: PowerSGDState | None = None
        if isinstance(mode.hook, int):
            # One bucket: with several, PowerSGD's collectives of different buckets get mixed up on gloo.
            options["bucket_cap_mb"] = 2 * self._parameters * 4 // 2**20 + 1
        self._model = DistributedDataParallel(model.train(), **options)
        if isinstance(mode.hook, int):
            self._power = PowerSGDState(
                process_group=None, matrix_approximation_rank=mode.hook, start_powerSGD_iter=POWERSGD_START,
                warm_start=True,
            )  # fmt: skip
            self._model.register_comm_hook(self._power, powerSGD_hook)
        elif mode.hook == "bf16":
            self._model.register_comm_hook(None, bf16_compress_hook)
        self._optimizer = _optimizer(self._model)
        self._numel, self._handed = self._parameters, 0
        self._dgc: DGCState | None = None
        if mode.hook == "dgc":
            config = DGC(density=density, warmup=(), max_skips=1, **mode.fields)  # a skipped step would look fast
            self._dgc = attach(self._model, self._optimizer, config)

    def step(self, batch: Batch) -> dict[str, float]:
        before = self._power.total_numel_after_compression if self._power else 0
        handed = self._dgc.upload_bytes if self._dgc else 0
        self._optimizer.zero_grad()
        F.cross_entropy(self._model(batch[0]), batch[1]).backward()
        self._optimizer.step()
        if self._power:
            self._numel = self._power.total_numel_after_compression - before or self._parameters
        if self._dgc:
            self._handed = self._dgc.upload_bytes - handed
        return {}

    def sent_bytes(self) -> int:
        """Bytes a worker sends in a step like the last, on average: those of a ring all-reduce of what the hook leaves,
        and its share of the broadcast of the buffers. Computed: gloo does not count. Our hook counts what it hands to
        collectives, which a ring passes on to everyone."""
        size = dist.get_world_size()
        handed, times = self._numel * self._value_bytes, 2 * (size - 1) / size
        if self._dgc:
            handed, times = self._handed, times if self._dgc.plan().whole else size - 1
        return round(times * handed + (size - 1) / size * self._buffers_bytes)
