"""The one class a user writes to train something of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sized
from typing import Any

import torch
from torch import Tensor, nn

from elastic_dgc.data.source import Source
from elastic_dgc.step.config import OptimizerConfig


class Task(ABC):
    """What is trained. Objects are pickled to the workers; build models and open data in the methods, not in __init__.

    **Purity.** `loss` and any augmentation must be pure functions of (weights, batch, random numbers): a virtual
    worker's step can be computed again by another worker, and must come out the same. Draw random numbers from
    torch, numpy or `random` freely: all three are seeded from (seed, attempt, virtual worker, micro-batch) before each
    call of `loss`, and from (seed, epoch, sample) for augmentation. Keep no state on the task or in globals between
    calls; state of the model belongs into its buffers (as BatchNorm's), which each virtual worker owns. Do not read
    clocks, process ids or `torch.Generator`s of your own.
    """

    name: str = "task"
    """What runs are called where nobody names them: letters, digits, '.', '_' and '-'."""

    @abstractmethod
    def model(self) -> nn.Module:
        """The model with initial weights, fp32, on the CPU. All generators are seeded with the run's seed before the
        call, so plain `nn` initialisation is equal on all workers; what is not is found by a digest at start."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, int]:
        """The *mean* loss of a batch (0-dim, with graph), or (mean loss, count) where the count that the mean was
        taken over is not the number of samples (tokens, for example). `model` is in training mode. A batch of which
        the source left out every sample is not asked for."""

    @abstractmethod
    def train_data(self) -> Source | Sized:
        """A `Source`, or any map-style data set (`__len__` and `__getitem__`), of training samples."""

    def test_data(self) -> Source | Sized | None:
        """The same for evaluation, or None for no evaluation."""
        return None

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, float]:
        """Sums over the samples of one batch, by name; the trainer divides by the number of samples. Called without
        gradients and in eval mode. A key `accuracy` (number of correct samples) becomes the reported accuracy."""
        del model, batch
        return {}

    def collate(self, samples: list[Any]) -> Any:
        """A batch from samples of a map-style data set."""
        return torch.utils.data.default_collate(samples)

    def optimizer(self) -> OptimizerConfig:
        """The optimizer's settings where the run's configuration names none."""
        return OptimizerConfig()

    def frozen(self, parameter_name: str) -> bool:
        """Whether this parameter is left as it is (beside those whose `requires_grad` is already False)."""
        del parameter_name
        return False

    def transform(self, sample: Any, rng: Any) -> Any:
        """Augmentation of one training sample of a map-style data set; `rng` is a `numpy.random.Generator` from
        (seed, epoch, sample)."""
        del rng
        return sample

    def averaged_buffer(self, buffer_name: str, per_virtual_worker: list[Tensor]) -> Tensor:
        """The value of a buffer for evaluation and model file: floating ones are averaged in virtual-worker order,
        others are virtual worker 0's. Override for buffers that need something else."""
        del buffer_name
        first = per_virtual_worker[0]
        if not first.is_floating_point():
            return first.clone()
        total = torch.zeros_like(first, dtype=torch.float64)
        for value in per_virtual_worker:
            total += value
        return (total / len(per_virtual_worker)).to(first.dtype)

    def identity(self) -> dict[str, Any]:
        """What must not change when a run is resumed, as JSON: whatever decides the result."""
        # A class that was made in a function loses the function's name on its way to another process.
        name = type(self).__qualname__.rpartition("<locals>.")[2]
        return {"task": f"{type(self).__module__}.{name}"}
