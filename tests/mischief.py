"""Workers and tasks that misbehave, for the tests of groups: here, because a worker's process imports them by name."""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Any

import groups
import torch
from groups import Points, TinyTask
from torch import Tensor, nn

from elastic_dgc.trainer.job import Job

_work = groups._work

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


def hide(path: str) -> None:
    """Give this process an empty file system of its own at `path`."""
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        lambda: libc.unshare(CLONE_NEWNS),
        lambda: libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        lambda: libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, None),
    ):
        if call() != 0:
            raise PermissionError(os.strerror(ctypes.get_errno()))


def work_apart(job: Job, rank: int, size: int, pipe: Any) -> None:
    if rank == 1:
        hide(job.run_url)
    _work(job, rank, size, pipe)


def work_on_a_full_disk(job: Job, rank: int, size: int, pipe: Any) -> None:
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # the system refuses to write more into a file
    _work(job, rank, size, pipe)


class OneBadPoint(Points):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        values, label = super().__getitem__(index)
        return (values * float("nan") if index == 7 and self.first == 0 else values), label


class WithABadPoint(TinyTask):
    def train_data(self) -> Points:
        return OneBadPoint(62)


class Exploding(TinyTask):
    """Every loss is infinite once the weights have moved a little."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        moved = model[0].weight.detach().sub(self.model_at_start(model)).abs().max()
        return super().loss(model, batch) * (float("inf") if moved > 1e-3 else 1.0)

    def model_at_start(self, model: nn.Module) -> Tensor:
        if not hasattr(model, "start"):
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model.start = [model[0].weight.detach().clone()]  # a list: no buffer, no parameter
        return model.start[0]
