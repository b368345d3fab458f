"""What a simulated run trains: a network with every kind of state, in 240 parameters, on data out of the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.exchange.ask import Kind, Steps
from elastic_dgc.exchange.gather import gather_virtual, gather_workers
from elastic_dgc.exchange.members import Members
from elastic_dgc.keeping import serialize
from elastic_dgc.precision.loss_scale import LossScale
from elastic_dgc.protocol.packing import pack_owned
from elastic_dgc.protocol.program import Program
from elastic_dgc.seeds import seed_everything
from elastic_dgc.simulation.digest import shared_digest
from elastic_dgc.simulation.durable import MemoryDurable
from elastic_dgc.step.attempt import Outcome
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.settings import FaultHook, StepSettings

SHARE, FEATURES = 2, 24
STEEP = 3e38  # of a loss whose value is finite while its gradient, times any loss scale above 1, is not
Batch = tuple[Tensor, Tensor, Tensor]


class Net(nn.Module):
    """BatchNorm's buffers, dropout, and tensors that travel sparse and whole."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(FEATURES, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.1)
        self.two = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.drop(torch.relu(self.norm(self.one(x)))))


@dataclass(frozen=True)
class Recipe:
    """The settings of a simulated run. `kind`: sparse, warm-up (a whole step first, then two densities), dense, or adam
    (sparse, with an optimizer that has state of its own). `scaled`: with a loss scale that moves. `overflow`: (attempt,
    virtual worker) whose loss is not finite, or, where the loss is scaled, whose gradient is not."""

    virtual_workers: int = 4
    attempts: int = 6
    kind: str = "sparse"
    scaled: bool = False
    overflow: tuple[int, int] | None = None
    epoch: int = 4
    digest_every: int = 2
    checkpoint_every: int = 5

    def settings(self) -> StepSettings:
        warmup = {"warm-up": (1.0, 0.2)}.get(self.kind, ())
        optimizer = OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=1e-3)
        return StepSettings(
            virtual_workers=self.virtual_workers,
            share=SHARE,
            steps_per_epoch=self.epoch,
            epochs=self.attempts,
            seed=1,
            optimizer=OptimizerConfig(name="adamw", lr=0.01) if self.kind == "adam" else optimizer,
            schedule=ScheduleConfig(kind="cosine"),
            compression=CompressionConfig(density=0.05, warmup=warmup, warmup_steps=2, min_numel=20),
            exchange="dense" if self.kind == "dense" else "dgc",
            loss_scale=LossScale(initial=1024.0, growth_every=2) if self.scaled else LossScale(),
        )

    def due(self, decided: int) -> Sequence[str]:
        """What everyone does at the boundary after so many attempts."""
        found = []
        if decided and decided % self.epoch == 0:
            found.append("evaluation")
        if decided and decided % self.digest_every == 0:
            found.append("digest")
        if decided and (decided % self.checkpoint_every == 0 or decided == self.attempts):
            found.append("checkpoint")
        return found


@lru_cache(maxsize=512)
def samples(attempt: int, virtual_worker: int) -> tuple[Tensor, Tensor]:
    """The data of (attempt, virtual worker)."""
    generator = torch.Generator().manual_seed(attempt * 1000 + virtual_worker)
    x = torch.randn(SHARE, FEATURES, generator=generator)
    return x, torch.randint(0, 3, (SHARE,), generator=generator)


class Training(Program):
    """One worker's program. `seen` is told of every boundary that it comes to, `fault` of the point `manifest`: all
    parts of a checkpoint are written, its manifest is not."""

    def __init__(
        self,
        recipe: Recipe,
        durable: MemoryDurable,
        seen: Callable[[int, Replica, Outcome], None] = lambda attempt, replica, outcome: None,
        fault: FaultHook = lambda point, attempt: None,
    ) -> None:
        self.recipe, self.durable, self.seen, self.fault = recipe, durable, seen, fault
        self.end = recipe.attempts
        self.settings = recipe.settings()

    def replica(self, hosted: Iterable[int]) -> Replica:
        seed_everything(1)
        return Replica(Net(), self.settings, hosted)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y, steep = batch
        bias = model.two.bias[0]  # type: ignore[union-attr, index]
        return nn.functional.cross_entropy(model(x), y) + torch.sin(bias * steep)

    def batches(self, attempt: int, virtual_worker: int) -> Sequence[MicroBatch]:
        (x, y), steep = samples(attempt, virtual_worker), torch.zeros(())
        if (attempt, virtual_worker) == self.recipe.overflow:
            if self.recipe.scaled:
                steep = torch.tensor(STEEP)
            else:
                x = x * 1e38
        return [MicroBatch((x, y, steep), SHARE)]

    def due(self, decided: int) -> Sequence[str]:
        return self.recipe.due(decided)

    def together(self, what: str, replica: Replica, members: Members, decided: int, view: int) -> Steps[Any]:
        return {"evaluation": self._evaluate, "digest": self._digest, "checkpoint": self._checkpoint}[what](
            replica, members, decided, view
        )

    def applied(self, outcome: Outcome, replica: Replica) -> None:
        self.seen(outcome.attempt, replica, outcome)

    def _evaluate(self, replica: Replica, members: Members, decided: int, view: int) -> Steps[None]:
        """The mean of forward's buffers over all virtual workers, in their order, is what is measured with."""
        own = {k: serialize.pack(one.buffers, {}) for k, one in replica.owned.items()}
        parts = yield from gather_virtual(
            members, Kind.BUFFERS, decided, own, phase="evaluation", deadline_s=0.0, sent_point="evaluation"
        )
        means = torch.stack([serialize.unpack(part)[0]["norm.running_mean"] for part in parts]).mean(0)
        metric = float(means.double().sum() + replica.weights.double().sum())
        kept = [one for one in replica.counters.evaluations if one["attempt"] != decided]
        replica.counters.evaluations = [*kept, {"attempt": decided, "metric": metric}]

    def _digest(self, replica: Replica, members: Members, decided: int, view: int) -> Steps[None]:
        own = shared_digest(replica).encode()
        found = yield from gather_workers(members, Kind.DIGEST, decided, own, phase="digest", deadline_s=0.0)
        if any(bytes(one) != own for one in found):
            raise AssertionError(f"digests differ after {decided} attempts")

    def _checkpoint(self, replica: Replica, members: Members, decided: int, view: int) -> Steps[None]:
        names = {k: f"owned-{k}" for k in range(members.virtual_workers)}
        for k, one in replica.owned.items():
            self.durable.write(view, decided, names[k], pack_owned(one))
        if members.rank == 0:
            self.durable.write(view, decided, "shared", serialize.pack(*replica.export_shared()))
        yield from gather_workers(members, Kind.CHECKPOINT, decided, b"", phase="checkpoint", deadline_s=0.0)
        self.fault("manifest", decided)
        if members.rank == 0:
            self.durable.commit(view, decided, ["shared", *names.values()])
        yield from gather_workers(members, Kind.CHECKPOINT, decided, b"", phase="checkpoint", deadline_s=0.0, part=1)
