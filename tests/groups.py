"""Groups of real worker processes without Ray: what the controller does, in thirty lines, for tests of kills.

A forkserver that has imported everything starts a worker in milliseconds.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elastic_dgc import faults
from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.errors import MessageError, PeerLost
from elastic_dgc.exchange.listener import Listener
from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.membership import runs
from elastic_dgc.step.config import OptimizerConfig
from elastic_dgc.tasks.task import Task
from elastic_dgc.trainer import job as jobs
from elastic_dgc.trainer import mesh
from elastic_dgc.trainer.config import RunConfig
from elastic_dgc.trainer.job import Job
from elastic_dgc.trainer.member import train_member

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["elastic_dgc.trainer.member", "elastic_dgc.models.registry", "torch.utils.tensorboard"])
DEADLINE_S = 240.0


class Points:
    """A map-style data set of labelled points, a pure function of the index."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng(index + self.first)
        label = int(rng.integers(3))
        return torch.from_numpy(rng.normal(label, 1.0, 8).astype(np.float32)), label


class TinyTask(Task):
    """BatchNorm, dropout, augmentation, evaluation: every kind of state, in 200 parameters."""

    name = "tiny"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))

    def train_data(self) -> Points:
        return Points(62)

    def test_data(self) -> Points:
        return Points(50, first=1000)

    def transform(self, sample: tuple[Tensor, int], rng: np.random.Generator) -> tuple[Tensor, int]:
        return sample[0] + torch.from_numpy(rng.normal(0, 0.1, 8).astype(np.float32)), sample[1]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, float]:
        return {"accuracy": float((model(batch[0]).argmax(1) == batch[1]).sum())}

    def optimizer(self) -> OptimizerConfig:
        return OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=1e-4)


def tiny_config(**changes: Any) -> RunConfig:
    """4 steps an epoch, 3 epochs, 4 virtual workers; a checkpoint after every step."""
    fields: dict[str, Any] = {
        "virtual_workers": 4, "batch": 16, "epochs": 3, "checkpoint_every_s": 0, "peer_silence_s": 8.0,
        "step_deadline_s": 30.0, "evaluation_batch": 16, "device": "cpu",
        "compression": CompressionConfig(density=0.05, warmup=(0.25,), warmup_steps=3, min_numel=16),
    }  # fmt: skip
    return RunConfig(**{**fields, **changes})


def tiny_job(storage: str, plan: list[dict[str, Any]] | None = None, task: Task | None = None, **changes: Any) -> Job:
    """A job as the driver makes it, for a run directory in `storage`."""
    used, config = task or TinyTask(), tiny_config(**changes)
    source = jobs.training_source(used, config)
    identity = jobs.identity_of(used, config, source, "cpu")
    identity = json.loads(json.dumps(identity))
    root = open_storage(storage)
    found = runs.RunDirectory.find(root, "run")
    if not found.number:
        found = runs.RunDirectory.create(root, "run", identity=identity, epochs=config.epochs, settings={}, versions={})
    url = root.child(found.place).url()
    return Job(
        used, config, "ab" * 16, f"run {time.monotonic_ns()}", url, "cpu", b"s" * 32, identity, json.dumps(plan or [])
    )


class Watching:
    progress: dict[str, Any] | None = None
    stop_requested = False
    leave_requested = False


def _work(job: Job, rank: int, size: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ[faults.VARIABLE] = job.faults
    listener = Listener(publish="127.0.0.1")
    pipe.send(listener.address)
    try:
        outcome: Any = ("returned", train_member(job, rank, size, pipe.recv(), listener, Watching()))
    except Exception as error:  # noqa: BLE001 - carried to the test
        outcome = ("raised", type(error).__name__, str(error))
    pipe.send(outcome)


def run_group(job: Job, size: int, limit: int = 5) -> list[Any]:
    """One group to its end: per rank ('returned', outcome), ('raised', type, text) or ('died', exit code)."""
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = SERVER.Pipe()
        process = SERVER.Process(target=_work, args=(job, rank, size, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        addresses = [pipe.recv() for pipe in pipes]
        start = mesh.Start(job.run, job.driver, size, ("here",) * size, time.time())
        claimed = mesh.claim(job.run_url, start, limit)
        for pipe in pipes:
            pipe.send(mesh.Mesh(tuple(addresses), claimed.hosts, claimed.view, claimed.error))
        found: list[Any] = []
        for pipe, process in zip(pipes, processes, strict=True):
            assert pipe.poll(DEADLINE_S), f"a worker is still running after {DEADLINE_S} s"
            try:
                found.append(pipe.recv())
            except EOFError:
                process.join(DEADLINE_S)
                found.append(("died", process.exitcode))
        return found
    finally:
        for process in processes:
            process.kill()
            process.join(DEADLINE_S)


def run_to_end(job: Job, sizes: list[int]) -> tuple[dict[str, Any], list[list[Any]]]:
    """Groups of these sizes one after the other (the last one repeats) until one ends the run, as Ray Train does:
    a lost worker starts the next group. Returns worker 0's outcome and what became of every group."""
    history: list[list[Any]] = []
    for number in range(10):
        ended = run_group(job, sizes[min(number, len(sizes) - 1)])
        history.append(ended)
        if all(one[0] == "returned" for one in ended):
            return ended[0][1], history
        restart = {PeerLost.__name__, MessageError.__name__}
        assert all(one[0] == "died" or one[0] == "returned" or one[1] in restart for one in ended), ended
    raise AssertionError(f"the run did not end: {history}")
