"""What the hook computes: torch's SGD at density 1, and DGC as the compression's own functions say it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp.ranks import DDP, loss_of, net, replicas_are_equal, run_ranks, train, weights

from elastic_dgc.compression.accumulate import Momentum, Rule, Workspace, accumulate
from elastic_dgc.compression.dgc import add_message, clip_factor, compress
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import unpack
from elastic_dgc.ddp import DGC, attach

pytestmark = pytest.mark.processes


def groups_of(model: torch.nn.Module, decay: float) -> list[dict[str, Any]]:
    """Two param groups, as usual: none of the weight decay for vectors."""
    split: list[list[Any]] = [[], []]
    for parameter in model.parameters():
        split[parameter.dim() >= 2].append(parameter)
    return [{"params": split[1], "weight_decay": decay}, {"params": split[0], "weight_decay": 0.0, "momentum": 0.7}]


def density_one(options: dict[str, Any], before: int) -> tuple[float, float]:
    """How far DGC at density 1 gets from plain DDP, and how far plain DDP gets, in 20 steps; the hook is attached after
    `before` steps."""
    models, optimizers = [], []
    for _ in range(2):
        model = DDP(net())
        models.append(model)
        optimizers.append(torch.optim.SGD(groups_of(model, 0.01), lr=0.05, **options))
    start = weights(models[0])
    loops = [train(*pair, range(20)) for pair in zip(models, optimizers, strict=True)]
    for step in range(20):
        if step == before:
            attach(models[1], optimizers[1], DGC(density=1.0, warmup=(), masking=False))
            assert all(group["momentum"] == group["weight_decay"] == 0 for group in optimizers[1].param_groups)
        for loop in loops:
            next(loop)
    distance = (weights(models[0]) - weights(models[1])).abs().max()
    return float(distance), float((weights(models[0]) - start).abs().max())


@pytest.mark.parametrize(
    ("options", "before"),
    [
        ({"momentum": 0.9, "nesterov": True}, 0),
        ({"momentum": 0.9, "nesterov": True}, 5),
        ({"momentum": 0.9, "dampening": 0.2}, 0),
        ({"momentum": 0.9, "maximize": True, "foreach": True}, 5),
    ],
)
def test_at_density_one_it_is_plain_ddp_with_torchs_sgd(options: dict[str, Any], before: int) -> None:
    for distance, moved in run_ranks(2, density_one, options, before):
        # going uphill everything grows, rounding too
        assert distance < (1e-5 if options.get("maximize") else 1e-6) * max(1.0, moved)
        assert moved > 0.1


DECAY, LR, STEPS = 0.01, 0.05, 12
FACTOR = Momentum(0.9, nesterov=True)


def config(values: str) -> DGC:
    return DGC(density=0.02, warmup=(0.1,), warmup_steps=5, min_numel=100, clip=0.5, values=values)


def sparse(values: str) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Weights after every step, and the state at the end."""
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, nesterov=True, weight_decay=DECAY)
    state = attach(model, optimizer, config(values))
    found = []
    for _ in train(model, optimizer, range(STEPS)):
        assert replicas_are_equal(model)
        gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        assert (gradient == 0).float().mean() > 0.5  # what nobody sent is exactly 0
        found.append(weights(model))
    assert state.steps == STEPS
    assert state.dense_bytes == 4 * state.layout.numel * STEPS > state.upload_bytes > 0
    return found, state.state_dict()


def simulate(world: int, using: DGC) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    """The same in one process, of the compression's functions. Checks conservation in fp64 on the way."""
    model = net()
    layout = Layout.of(model.named_parameters(), using.min_numel)
    named = {segment.name: model.get_parameter(segment.name) for segment in layout.segments}
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    us, vs = ([torch.zeros(layout.numel) for _ in range(world)] for _ in range(2))
    entered, applied = torch.zeros(layout.numel).double(), torch.zeros(layout.numel).double()
    found = []
    for step in range(STEPS):
        density, messages = using.density_after(step), []
        flat_weights = torch.cat([p.detach().reshape(-1) for p in named.values()])
        for k in range(world):
            optimizer.zero_grad()
            loss_of(model, step, k).backward()
            gradient = torch.cat([p.grad.reshape(-1) for p in named.values()])
            norms = torch.stack([p.grad.norm() for p in named.values()]).double()
            factor = clip_factor(float(norms.norm()) / world, 0.5, world)
            assert factor < 1 or step > 2
            rules = [Rule(factor / world, DECAY / world, FACTOR)] * len(layout.segments)
            new_u, new_v, workspace = torch.empty_like(us[k]), torch.empty_like(vs[k]), Workspace()
            accumulate(layout, rules, density, gradient, flat_weights, us[k], vs[k], new_u, new_v, workspace)
            entered += new_v.double() - vs[k].double()
            us[k], vs[k] = new_u, new_v
            messages.append(compress(layout, using.values, density, new_u, new_v, True, workspace))
        total = torch.zeros(layout.numel)
        for message in messages:
            said = unpack(layout, message)
            add_message(total, said.positions, said.values)
        applied += total.double()
        for name, part in layout.views(total).items():
            named[name].grad = part.clone()
        optimizer.step()
        found.append(weights(model))
    pending = sum(v.double() for v in vs)
    torch.testing.assert_close(applied + pending, entered, rtol=0, atol=1e-6)
    assert applied.abs().sum() > 0
    return found, [{"u": layout.views(u), "v": layout.views(v)} for u, v in zip(us, vs, strict=True)]


@pytest.mark.parametrize(("world", "values"), [(2, "fp32"), (3, "int8")])
def test_sparse_steps_are_bitwise_those_of_the_compression(world: int, values: str) -> None:
    expected, states = simulate(world, config(values))
    for (found, state), wanted in zip(run_ranks(world, sparse, values), states, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        for part in ("u", "v"):
            assert all(torch.equal(state[part][name], wanted[part][name]) for name in wanted[part])


def alone() -> bool:
    """One rank: local SGD with compression, and a vote of one."""
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    state = attach(model, optimizer, DGC(density=0.05, warmup=(), min_numel=100))
    before = loss_of(model, 99, 0).item()
    for _ in train(model, optimizer, range(30)):
        assert dist.get_world_size() == 1
    return loss_of(model, 99, 0).item() < 0.5 * before and state.steps == 30


def test_one_rank_is_enough() -> None:
    assert run_ranks(1, alone) == [True]
