"""The two sides of `bench_step`: a step of this trainer and a step of plain PyTorch DDP, on the same batches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elastic_dgc.compression.config import CompressionConfig, Exchange
from elastic_dgc.data.loader import Loader
from elastic_dgc.data.source import Rows, Source
from elastic_dgc.exchange.ask import Key, Payload
from elastic_dgc.exchange.listener import Listener
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.tcp import TcpTransport
from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.models import registry
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig
from elastic_dgc.step.replica import Replica
from elastic_dgc.tasks.image import ImageClassification, ImageConfig
from elastic_dgc.tasks.task import Task
from elastic_dgc.trainer import job as jobs
from elastic_dgc.trainer.config import RunConfig
from elastic_dgc.trainer.feed import Feed
from elastic_dgc.trainer.figures import Figures
from elastic_dgc.trainer.group import Group
from elastic_dgc.trainer.loop import Signals, Totals, Training
from elastic_dgc.trainer.saving import Checkpoints

WORKERS = 2
WARMUP = 5
CLASSES = 10
LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-4


@dataclass(frozen=True)
class Bench:
    """What is measured: `steps` of every mode in each of `rounds`, `batch` images of `size` x `size` per process."""

    steps: int = 10
    rounds: int = 10
    batch: int = 32
    model: str = "resnet20"
    size: int = 32

    @property
    def attempts(self) -> int:
        return WARMUP + self.steps * self.rounds


class Memory(Source):
    """Random images in memory: uint8[n, 3, size, size], labels int64[n]."""

    def __init__(self, samples: int, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (samples, 3, size, size), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(CLASSES, (samples,), generator=generator)
        self.group_sizes = [samples]
        self.fingerprint = f"{samples}x{size}"

    def load(self, rows: Rows, epoch: int | None) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(rows)
        return self.images[index], self.labels[index]


class Images(Task):
    """Image classification as users run it, on images in memory. `forward_backward_s` is that of the last step."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._task = ImageClassification(ImageConfig(model=bench.model, channels=3, classes=CLASSES))
        self._started = self.forward_backward_s = 0.0

    def model(self) -> nn.Module:
        return registry.build(self._bench.model, CLASSES, 3, self._bench.size)

    def train_data(self) -> Memory:
        return Memory(max(1024, 4 * WORKERS * self._bench.batch), self._bench.size)

    def normalise(self, images: Tensor) -> Tensor:
        return self._task.normalise(images)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        self._started = time.perf_counter()
        mean, count = self._task.loss(model, batch)
        mean.register_hook(self._in_backward)
        return mean, count

    def _in_backward(self, gradient: Tensor) -> None:
        # runs as backward begins; the engine calls back when all gradients are written
        torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        self.forward_backward_s = time.perf_counter() - self._started


class TimedTransport(TcpTransport):
    """Adds up the time its user waits, by phase."""

    def __init__(self, *arguments: Any) -> None:
        self.waited_s: dict[str, float] = {}
        super().__init__(*arguments)

    def collect(self, want: Mapping[Key, int], deadline_s: float, phase: str) -> dict[Key, Payload]:
        start = time.perf_counter()
        try:
            return super().collect(want, deadline_s, phase)
        finally:
            self.waited_s[phase] = self.waited_s.get(phase, 0.0) + time.perf_counter() - start


def run_config(bench: Bench, exchange: Exchange) -> RunConfig:
    """The run of both: K = workers = 2, SGD with momentum, a constant learning rate, dgc at 0.1 % at once."""
    return RunConfig(
        workers=WORKERS,
        virtual_workers=WORKERS,
        batch=WORKERS * bench.batch,
        exchange=exchange,
        optimizer=OptimizerConfig(lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
        schedule=ScheduleConfig(kind="constant"),
        compression=CompressionConfig(density=0.001, warmup=()),
        max_skips=1,
    )


class Ours:
    """One worker of this trainer, as `elastic_dgc.trainer.member` sets it up, to be stepped by hand."""

    def __init__(self, bench: Bench, exchange: Exchange, rank: int, folder: Path) -> None:
        self.task, config = Images(bench), run_config(bench, exchange)
        source = jobs.training_source(self.task, config)
        order = jobs.make_order(source, config)
        identity = jobs.identity_of(self.task, config, source, "cpu")
        jobs.seed_model(config)
        members = Members.of(rank, WORKERS, WORKERS)
        settings = jobs.step_settings(self.task, config, order, identity)
        self.replica = Replica(self.task.model(), settings, members.hosted)
        self._listener = Listener("127.0.0.1")
        addresses: list[Any] = [None] * WORKERS
        dist.all_gather_object(addresses, self._listener.address)
        self.transport = TimedTransport(self._listener, rank, addresses, bytes(16), 0, b"bench")
        group = Group(members, self.transport, 0, config.step_deadline_s)
        storage = open_storage(str(folder / exchange))
        self._loader = Loader(source, order, config.micro_batch, members.hosted, 0, bench.attempts, 1)
        self._figures = Figures(storage, 0, 0) if group.leads else None
        job = jobs.Job(self.task, config, "0" * 32, "bench", storage.url(), "cpu", b"bench", identity)
        checkpoints = Checkpoints(storage, group, self.replica, job.run, config.keep)
        self._training = Training(
            job, group, self.replica, order, Feed(self._loader, self.replica.device), None, checkpoints, storage,
            Totals(), Signals(), self._figures,
        )  # fmt: skip

    def step(self) -> dict[str, float]:
        """Seconds of one step by part; `step` is all of it, `cpu` the processor time of all threads."""
        self.transport.waited_s.clear()
        start, cpu = time.perf_counter(), time.process_time()
        outcome = self._training._attempt()
        total, cpu = time.perf_counter() - start, time.process_time() - cpu
        parts, forward_backward = outcome.seconds, self.task.forward_backward_s
        wait = self.transport.waited_s["vote"]
        found = {
            "forward_backward": forward_backward,
            "exchange": parts["exchange"] + wait,
            "around forward-backward": parts["compute"] - forward_backward,
            "vote": parts["vote"] - wait,
            "compress": parts["compress"],
            "apply": parts["apply"],
            "around the attempt": total - sum(parts.values()),
        }
        return {"step": total, "cpu": cpu, **found}

    def weights(self) -> dict[str, Tensor]:
        return self.replica.trained

    def close(self) -> None:
        self._loader.close()
        if self._figures is not None:
            self._figures.close()
        self.transport.close()
        self._listener.close()


class PlainDDP:
    """DistributedDataParallel with torch's SGD, as in torch's tutorial, on batches that lie ready."""

    def __init__(self, bench: Bench, rank: int) -> None:
        self.task, config = Images(bench), run_config(bench, "dense")
        source = self.task.train_data()
        order = jobs.make_order(source, config)
        rows = [(order.rows(number, rank), order.epoch_of(number)) for number in range(bench.attempts)]
        self._batches = iter([source.load(*one) for one in rows])
        jobs.seed_model(config)
        self._inner = self.task.model()
        self._model = DistributedDataParallel(self._inner)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)

    def step(self) -> dict[str, float]:
        """Seconds of one step, and of processor time in all threads."""
        start, cpu = time.perf_counter(), time.process_time()
        images, labels = next(self._batches)
        self._optimizer.zero_grad()
        F.cross_entropy(self._model(self.task.normalise(images)), labels).backward()
        self._optimizer.step()
        return {"step": time.perf_counter() - start, "cpu": time.process_time() - cpu}

    def weights(self) -> dict[str, Tensor]:
        return dict(self._inner.named_parameters())
