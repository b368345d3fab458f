"""Real process groups for tests: a scenario runs on every rank of a gloo group, in processes of a fork server."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import multiprocessing
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

SERVER = multiprocessing.get_context("forkserver")
_chosen = [name for name in forkserver._forkserver._preload_modules if name != "__main__"]
SERVER.set_forkserver_preload([*_chosen, "elastic_dgc.ddp", "torch._dynamo"])  # DDP and optimizers load the last late
DEADLINE_S, COLLECTIVE_S = 240.0, 60.0


def run_ranks(world: int, scenario: Callable[..., Any], *args: Any) -> list[Any]:
    """What `scenario(*args)` returns on each rank. A scenario is a function of a test file; it may assert."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = SERVER.Pipe()
            place = (inspect.getfile(scenario), scenario.__name__)
            process = SERVER.Process(
                target=_rank, args=(rank, world, f"{folder}/store", place, args, theirs), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            end = time.monotonic() + DEADLINE_S
            found = []
            for rank, pipe in enumerate(pipes):
                assert pipe.poll(max(0.0, end - time.monotonic())), f"rank {rank} is still running after {DEADLINE_S} s"
                found.append(pickle.loads(pipe.recv_bytes()))
            errors = [f"rank {rank}: {one[1]}" for rank, one in enumerate(found) if one[0] == "raised"]
            assert not errors, "\n".join(errors)
            return [one[1] for one in found]
        finally:
            for process in processes:
                process.kill()
                process.join(DEADLINE_S)


def _rank(rank: int, world: int, store: str, place: tuple[str, str], args: tuple[Any, ...], pipe: Connection) -> None:
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")
    try:
        spec = importlib.util.spec_from_file_location("scenario_" + Path(place[0]).stem, place[0])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made = dist.FileStore(store, world)
        dist.init_process_group(
            "gloo", rank=rank, world_size=world, store=made, timeout=timedelta(seconds=COLLECTIVE_S)
        )
        outcome: Any = ("returned", getattr(module, place[1])(*args))
        if dist.is_initialized():
            dist.barrier()
    except BaseException:  # noqa: BLE001 - carried to the test
        outcome = ("raised", traceback.format_exc())
    pipe.send_bytes(pickle.dumps(outcome))  # not by torch's own way, through shared memory


class Net(nn.Module):
    """Convolution, norm, linear layers: 1,900 parameters, some small, some that are selected from."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.norm = nn.GroupNorm(2, 6)
        self.hidden = nn.Linear(54, 30)
        self.head = nn.Linear(30, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.norm(self.conv(x))).flatten(1)
        out: Tensor = self.head(torch.tanh(self.hidden(features)))
        return out


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def batch(step: int, rank: int, count: int = 8) -> tuple[Tensor, Tensor]:
    """A batch that is a pure function of step and rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(0, 4, (count,), generator=generator)
    return torch.randn(count, 2, 5, 5, generator=generator) + labels.view(-1, 1, 1, 1), labels


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    x, y = batch(step, rank)
    return nn.functional.cross_entropy(model(x), y)


def train(ddp: DDP, optimizer: torch.optim.Optimizer, steps: range | list[int]) -> Iterator[int]:
    """The plain loop; yields after every step."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(ddp, step, dist.get_rank()).backward()
        optimizer.step()
        yield step


def run(ddp: DDP, optimizer: torch.optim.Optimizer, steps: range | list[int]) -> None:
    for _ in train(ddp, optimizer, steps):
        pass


def weights(model: nn.Module) -> Tensor:
    """All parameters, as one vector (a copy)."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


def replicas_are_equal(model: nn.Module) -> bool:
    """Whether the weights of all ranks have the same bits."""
    mine = weights(model)
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, mine)
    return all(torch.equal(one, mine) for one in all_of_them)


class _Lines(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def listen(level: int = logging.WARNING) -> list[str]:
    """What the package logs from now on, as it grows."""
    handler = _Lines(level)
    log = logging.getLogger("elastic_dgc")
    log.addHandler(handler)
    log.setLevel(min(level, log.level or level))
    return handler.lines


def same(a: Any, b: Any) -> bool:
    """Whether two u or v, by name, have the same bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
