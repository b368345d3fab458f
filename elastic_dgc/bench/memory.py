"""Memory that training holds, counted in the tensors that are really there."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elastic_dgc import ddp
from elastic_dgc.bench.network import interface_of
from elastic_dgc.compression.accumulate import BLOCK
from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.select import GROUPS, group_size, groups_of
from elastic_dgc.ddp.residual import LEAST_BLOCK
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.memory import run_together
from elastic_dgc.step.attempt import attempt
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.settings import StepSettings

MOST_OWNED, SCRATCH_SHARE = {"trainer": 4.0, "DDP hook": 2.0}, 0.05  # fp32 values a parameter; a share of these
LEAST_PARAMETERS = 1_000_000  # in smaller networks the fixed block is more than any share
FIXED_BLOCK = {"trainer": BLOCK, "DDP hook": LEAST_BLOCK}


def maxima_per_parameter(layout: Layout, density: float) -> float:
    """Group maxima that the selection keeps, by parameter: up to a 64th, and up to an 8th at densities that need small
    groups (about 0.4 to 3 %: the warm-up's)."""
    sizes = [(one.numel, group_size(one.numel, one.count(density))) for one in layout.sparse]
    return round(sum(groups_of(numel, size) for numel, size in sizes if size > 1) / layout.numel, 4)


def most_scratch(who: str, parameters: int, maxima: float) -> float | None:
    """The limit of `scratch` for the 'trainer' or the 'DDP hook', in fp32 values a parameter: 5 % of what it owns, and
    what `maxima` (see `maxima_per_parameter`) is above that of the large groups. None where the fixed block alone would
    be about the limit: it does not shrink with the network."""
    usual, share = round(SCRATCH_SHARE * MOST_OWNED[who], 2), 1 / GROUPS[0]
    if parameters < LEAST_PARAMETERS or FIXED_BLOCK[who] / parameters + share > usual:
        return None
    return round(usual + max(0.0, maxima - share), 3)


def settings(density: float, virtual_workers: int = 1, share: int = 1) -> StepSettings:
    """A run past its warm-up, as it is by default: SGD with momentum and weight decay."""
    return StepSettings(
        virtual_workers, share, steps_per_epoch=1 << 30, epochs=1, seed=0,
        optimizer=OptimizerConfig(lr=1e-4, momentum=0.9, weight_decay=1e-4), schedule=ScheduleConfig(kind="constant"),
        compression=CompressionConfig(density=density, warmup=()),
    )  # fmt: skip


def trainer_values(make: Callable[[], nn.Module], density: float) -> dict[str, float]:
    """fp32 values a worker with one virtual worker holds for each parameter, after an attempt with the model `make()`.

    `owned`: u, v and their other buffers; `scratch`: what compression keeps beside them; `weights`, and `sum`, in
    which the messages are added up: once a worker, however many virtual workers it hosts. `other` is every tensor else
    (forward's buffers), by looking at all tensors in the process: nothing can hide.
    """
    before = _bytes_of_all_tensors()
    replica = Replica(make(), settings(density), [0])

    def loss(network: nn.Module, _: Any) -> Tensor:  # a gradient everywhere, whatever images the network takes
        return torch.stack([one.square().sum() for one in network.parameters()]).sum()

    [outcome] = run_together([attempt(replica, Members.of(0, 1, 1), lambda k: [MicroBatch(None, 1)], loss)])
    assert outcome.committed, outcome.reasons
    del outcome
    owned, unit = replica.owned[0], 4 * replica.layout.numel
    pairs = [owned.v, owned.other_v, owned.u, owned.other_u]
    parts = {
        "owned": sum(one.nbytes for one in pairs if one is not None),
        "scratch": replica.workspace.bytes,
        "weights": replica.weights.nbytes,
        "sum": replica.total.flat.nbytes,
    }
    held = _bytes_of_all_tensors() - before
    parts["other"] = held - sum(parts.values())
    return {name: round(size / unit, 4) for name, size in parts.items()}


class _Norm(nn.Module):
    """A loss that gives every parameter of a model a gradient, whatever the model takes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> Tensor:
        return torch.stack([one.square().sum() for one in self.model.parameters()]).sum()


def hook_values(make: Callable[[], nn.Module], density: float) -> dict[str, float]:
    """The same for the hook of plain DDP with SGD and momentum, in a group of one rank that is ended again.

    `owned`: u and v, in which the optimizer's momentum lives now. `scratch` is all that is neither that, nor the
    parameters, nor DDP's gradients; there is no `sum`, it goes into the gradients.
    """
    interface = interface_of("127.0.0.1")
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        before = _bytes_of_all_tensors()
        model = DistributedDataParallel(_Norm(make()), gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        state = ddp.attach(model, optimizer, ddp.DGC(density=density, warmup=()))
        for _ in range(2):
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
        residual, unit = state.residual, 4 * state.layout.numel
        parts = {
            "owned": residual.v.nbytes + (0 if residual.u is None else residual.u.nbytes),
            "weights": sum(one.nbytes for one in model.parameters()),
            "gradients": sum(one.grad.nbytes for one in model.parameters() if one.grad is not None),
            "other": sum(one.nbytes for one in model.buffers()),
        }
        parts["scratch"] = _bytes_of_all_tensors() - before - sum(parts.values())
        return {name: round(size / unit, 4) for name, size in parts.items()}
    finally:
        dist.destroy_process_group()


def _bytes_of_all_tensors() -> int:
    """Bytes of the memory of all CPU tensors in this process, shared memory once."""
    gc.collect()
    found = {}
    for one in gc.get_objects():
        if issubclass(type(one), Tensor) and one.device.type == "cpu" and one.layout is torch.strided:
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())
