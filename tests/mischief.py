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

from elastic_dgc.step.attempt import Outcome
from elastic_dgc.trainer.job import Job
from elastic_dgc.trainer.loop import Training

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


def work_with_a_memory_that_forgets(job: Job, rank: int, size: int, pipe: Any) -> None:
    """Virtual worker 2's residual before attempt 0, virtual worker 1's running mean before attempt 6."""
    attempt = Training._attempt

    def forget(training: Training) -> Outcome:
        owned, number = training.replica.owned, training.replica.counters.attempt
        if number == 0 and 2 in owned:
            owned[2].v[7] = float("nan")
        if number == 6 and 1 in owned:
            owned[1].buffers["1.running_mean"][3] = float("inf")
        return attempt(training)

    setattr(Training, "_attempt", forget)  # noqa: B010 - this process is the worker's own
    _work(job, rank, size, pipe)


class OneBadPoint(Points):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        values, label = super().__getitem__(index)
        return (values * float("nan") if index == 7 and self.first == 0 else values), label


class WithABadPoint(TinyTask):
    def train_data(self) -> Points:
        return OneBadPoint(62)


class FailingEvaluation(TinyTask):
    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, float]:
        if len(batch[1]) == 2:  # the last batch
            raise IndexError(49)
        return super().evaluate(model, batch)


class WithoutItsLibrary(TinyTask):
    def model(self) -> nn.Module:
        import not_there  # noqa: F401

        return super().model()


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


class ExplodingAtThree(TinyTask):
    """Every loss is infinite after three applied attempts."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        mean = super().loss(model, batch)
        return mean * (float("inf") if model[1].num_batches_tracked > 3 else 1.0)


def work_with_another_torch(job: Job, rank: int, size: int, pipe: Any) -> None:
    if rank == 1:
        torch.__version__ = "2.9.9"
    _work(job, rank, size, pipe)


class WithAnOddBuffer(TinyTask):
    """A buffer of a type by its name in torch."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def model(self) -> nn.Module:
        model = super().model()
        model[0].register_buffer("odd", torch.zeros(3, dtype=getattr(torch, self.dtype)))
        return model


def work_with_a_flipped_bit(job: Job, rank: int, size: int, pipe: Any) -> None:
    """One bit of the last worker's weights is another before attempt 6."""
    attempt = Training._attempt

    def flip(training: Training) -> Outcome:
        if training.replica.counters.attempt == 6 and training.group.members.rank == size - 1:
            training.replica.parameters["0.weight"].data.view(torch.int32)[3, 4] ^= 1
        return attempt(training)

    setattr(Training, "_attempt", flip)  # noqa: B010 - this process is the worker's own
    _work(job, rank, size, pipe)


class Unseeded(TinyTask):
    """Weights that no seed reaches."""

    def model(self) -> nn.Module:
        model = super().model()
        generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "big"))
        model[4].weight.data.normal_(generator=generator)
        return model


class MeansThatAreNoNumbers(TinyTask):
    """Averages its buffers badly; there is no evaluation that would show it."""

    def test_data(self) -> None:
        return None

    def averaged_buffer(self, name: str, values: list[Tensor]) -> Tensor:
        mean = super().averaged_buffer(name, values)
        return mean * float("nan") if name == "1.running_var" else mean
