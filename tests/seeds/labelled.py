"""A net and data that can be learned in a hundred small steps, for runs as long as those of the reports; and tasks for
worker processes, which import them by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import groups
import torch
from groups import TinyTask
from torch import Tensor, nn

from elastic_dgc.exchange.ask import Ask
from elastic_dgc.exchange.tcp import TcpTransport
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.trainer.job import Job

CLASSES, SIDE = 4, 12
_work = groups._work


class TwoLayers(nn.Module):
    """Two linear layers, 700 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(SIDE, 40)
        self.head = nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.hidden(x)))
        return out


def points(count: int, *key: int) -> tuple[Tensor, Tensor]:
    """Noisy points around one centre for each class: a pure function of the key."""
    generator = torch.Generator().manual_seed(hash(key) & 0x7FFFFFFF)
    centres = torch.randn(CLASSES, SIDE, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return centres[labels] + 0.8 * torch.randn(count, SIDE, generator=generator), labels


def shares(number: int, virtual_worker: int) -> list[MicroBatch]:
    """One micro-batch of four samples."""
    return [MicroBatch(points(4, number, virtual_worker), 4)]


def accuracy(model: nn.Module) -> float:
    """Of a model as it is, on points that no step has seen."""
    x, labels = points(1000, -1)
    with torch.no_grad():
        return float((model(x).argmax(1) == labels).float().mean())


class Validated(TinyTask):
    """Its evaluation gives the loss too."""

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, float]:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return {**super().evaluate(model, batch), "loss": loss.item()}


class StartsElsewhere(TinyTask):
    """Its weights do not come from the seed, so each process has its own."""

    def model(self) -> nn.Module:
        model = super().model()
        with torch.no_grad():
            next(model.parameters())[0, 0] = os.getpid()
        return model


def work_by_gloo_alone(job: Job, rank: int, size: int, pipe: Any) -> None:
    """A worker that fails where gradients go by frames."""
    exchange = TcpTransport.exchange

    def refuse(self: TcpTransport, ask: Ask, sent: Any = None) -> Any:
        assert ask.phase != "exchange", "gradients went by frames"
        return exchange(self, ask, sent)

    setattr(TcpTransport, "exchange", refuse)  # noqa: B010 - this process is the worker's own
    _work(job, rank, size, pipe)
