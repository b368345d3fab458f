"""A run without processes: N replicas in one thread on the in-memory exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.memory import Network, run_each, run_together
from elastic_dgc.precision.digest import combine, digests
from elastic_dgc.seeds import seed_everything
from elastic_dgc.step.attempt import Outcome, attempt
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig
from elastic_dgc.step.replica import LossFunction, Replica
from elastic_dgc.step.settings import StepSettings

SHARE = 4


class SmallNet(nn.Module):
    """Convolution, BatchNorm, dropout, a linear layer: every kind of state there is, in 500 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(6 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1))


def settings(virtual_workers: int = 4, **changes: Any) -> StepSettings:
    base = StepSettings(
        virtual_workers=virtual_workers,
        share=SHARE,
        steps_per_epoch=5,
        epochs=10,
        seed=3,
        optimizer=OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=1e-3),
        schedule=ScheduleConfig(kind="cosine"),
        compression=CompressionConfig(density=0.02, warmup=(0.1,), warmup_steps=3, min_numel=20),
    )
    return replace(base, **changes)


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def batches(number: int, virtual_worker: int) -> list[MicroBatch]:
    """Two micro-batches that are a pure function of attempt and virtual worker."""
    generator = torch.Generator().manual_seed(number * 1000 + virtual_worker)
    out = []
    for _ in range(2):
        x = torch.randn(SHARE // 2, 1, 5, 5, generator=generator)
        out.append(MicroBatch((x, torch.randint(0, 4, (SHARE // 2,), generator=generator)), SHARE // 2))
    return out


def bad_batch(at: int, virtual_worker: int, how: str) -> Callable[[int, int], list[MicroBatch]]:
    """The same, but one share goes wrong: 'inf' or 'nan' in its images, or an exception that says where."""

    def of(number: int, k: int) -> list[MicroBatch]:
        found = batches(number, k)
        if (number, k) == (at, virtual_worker):
            if how == "inf":
                found[1].data[0].fill_(1e38)
            elif how == "nan":
                found[0].data[0][0, 0, 0, 0] = float("nan")
            else:
                raise ValueError(f"sample 17 is no image in {how}")
        return found

    return of


def shared_digests(replica: Replica) -> dict[str, str]:
    """The digest of every part of shared state, by name: equal on all workers between attempts (R2)."""
    tensors, values = replica.export_shared()
    return {**digests(tensors), "counters": repr(sorted(values.items()))}


class Group:
    """N workers that host K virtual workers, stepped together."""

    def __init__(
        self,
        workers: int,
        using: StepSettings,
        model: Callable[[], nn.Module] = SmallNet,
        loss: LossFunction = cross_entropy,
        batches_of: Callable[[int, int], Sequence[MicroBatch]] = batches,
    ) -> None:
        self.loss, self.batches_of = loss, batches_of
        self.members = [Members.of(rank, workers, using.virtual_workers) for rank in range(workers)]
        self.replicas = []
        for members in self.members:
            seed_everything(using.seed)
            self.replicas.append(Replica(model(), using, members.hosted))

    def _steps(self) -> list[Any]:
        number = self.replicas[0].counters.attempt
        return [
            attempt(replica, members, lambda k: self.batches_of(number, k), self.loss)
            for replica, members in zip(self.replicas, self.members, strict=True)
        ]

    def step(self, network: Network | None = None) -> Outcome:
        return run_together(self._steps(), network=network)[0]

    def step_each(self, network: Network | None = None) -> list[Any]:
        return run_each(self._steps(), network=network)

    def run(self, attempts: int) -> Group:
        for _ in range(attempts):
            self.step()
        return self

    def state(self) -> dict[str, str]:
        """Digests of all shared and owned state; shared state must be equal on all workers (R2)."""
        shared = [shared_digests(replica) for replica in self.replicas]
        assert all(one == shared[0] for one in shared)
        owned = {k: one for replica in self.replicas for k, one in replica.owned.items()}
        found = {f"owned {k}": combine(digests(one.export()[0])) for k, one in sorted(owned.items())}
        return {**shared[0], **found}

    def pending(self) -> Tensor:
        """sum(v) over all virtual workers, fp64."""
        owned = {k: one for replica in self.replicas for k, one in replica.owned.items()}
        return torch.stack([one.v.double() for _, one in sorted(owned.items())]).sum(0)
