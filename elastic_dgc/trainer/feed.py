"""From loaded batches to what the step computes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from elastic_dgc.data.loader import Loader
from elastic_dgc.step.compute import MicroBatch


def to_device(data: Any, device: torch.device) -> Any:
    """Move every tensor of a nested batch (tuples, lists, dicts) to the device; what is no tensor stays."""
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, dict):
        return {key: to_device(value, device) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(value, device) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(to_device(value, device) for value in data)
    return data


class Feed:
    """Gives each attempt its micro-batches, and remembers which samples they were until the attempt is decided."""

    def __init__(self, loader: Loader, device: torch.device) -> None:
        self._loader, self._device = loader, device
        self.used: dict[int, list[int]] = {}  # virtual worker -> row ids of the present attempt
        self.left_out: dict[int, list[int]] = {}

    def begin(self) -> None:
        """A new attempt starts."""
        self.used, self.left_out = {}, {}

    def batches(self, attempt: int, virtual_worker: int) -> Sequence[MicroBatch]:
        """The micro-batches of a hosted virtual worker, on the device. Raises what loading them raised."""
        found = self._loader.get(attempt, virtual_worker)
        self.used[virtual_worker] = [int(row) for batch in found for row in batch.rows]
        self.left_out[virtual_worker] = [int(row) for batch in found for row in batch.left_out]
        return [self._micro(batch.data, batch.rows, batch.left_out) for batch in found]

    def _micro(self, data: Any, rows: Iterable[int], left_out: Iterable[int]) -> MicroBatch:
        out = {int(row) for row in left_out}
        there = tuple(int(row) for row in rows if int(row) not in out)
        return MicroBatch(to_device(data, self._device), len(there), there)
