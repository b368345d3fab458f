"""Whatever DDP does with its buckets, the trajectory is the same, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp.ranks import DDP, Net, batch, loss_of, net, run, run_ranks, same, weights
from torch import Tensor, nn

from elastic_dgc.ddp import DGC, DGCState, attach

pytestmark = pytest.mark.processes

# A whole step, which makes use of collectives in chunks, before the sparse ones.
CONFIG = DGC(density=0.03, warmup=(1.0, 0.1), warmup_steps=2, min_numel=100)


class Branches(nn.Module):
    """A branch that rank 0 uses in odd steps only, one that nobody uses in even steps, one that is frozen. With `all`
    what is not used is used times zero."""

    def __init__(self, everything: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net, self.left, self.right = Net(), nn.Linear(4, 40), nn.Linear(4, 40)
        self.frozen = nn.Linear(4, 40).requires_grad_(False)
        self.everything, self.step = everything, 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        left = dist.get_rank() == 1 or self.step % 2 == 1
        right = self.step % 2 == 1
        total = out + self.frozen(out).mean()
        for branch, used in ((self.left, left), (self.right, right)):
            if used or self.everything:
                total = total + branch(out.detach()).square().mean() * float(used)
        return total


def prepared(model: nn.Module, ddp: dict[str, Any]) -> tuple[DDP, torch.optim.Optimizer, DGCState]:
    wrapped = DDP(model, **ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True)
    return wrapped, optimizer, attach(wrapped, optimizer, CONFIG)


VARIANTS: list[dict[str, Any]] = [
    {"bucket_cap_mb": 0.0005},
    {"bucket_cap_mb": 0.0005, "gradient_as_bucket_view": True},
    {"find_unused_parameters": True, "bucket_cap_mb": 0.001},
    {"static_graph": True, "bucket_cap_mb": 0.001},
    {"static_graph": True, "gradient_as_bucket_view": True},
]


def buckets() -> None:
    """All variants in one group, against the plainest."""
    outcomes = []
    for options in [{}, *VARIANTS]:
        model, optimizer, state = prepared(net(), options)
        run(model, optimizer, range(9))
        outcomes.append((weights(model), state.state_dict()))
    for (found, state_dict), options in zip(outcomes[1:], VARIANTS, strict=True):
        assert torch.equal(found, outcomes[0][0]), options
        for part in ("u", "v"):
            assert same(state_dict[part], outcomes[0][1][part]), options


def channels_last() -> None:
    """The memory format changes neither the state's shapes nor, beyond rounding, the result."""
    outcomes = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        model, optimizer, state = prepared(net().to(memory_format=memory_format), {"bucket_cap_mb": 0.001})
        run(model, optimizer, range(2))  # whole steps: a sparse one may pick another of two nearly equal entries
        outcomes.append((weights(model), state.state_dict()["u"]))
        if memory_format is torch.channels_last:
            run(model, optimizer, range(2, 9))
            assert state.steps == 9
    torch.testing.assert_close(outcomes[0][0], outcomes[1][0], rtol=0, atol=1e-5)
    for name, u in outcomes[0][1].items():
        torch.testing.assert_close(u, outcomes[1][1][name], rtol=0, atol=1e-5)


def unused() -> None:
    """An unused parameter has a zero gradient, and what its residual sends reaches it where no rank used it."""
    outcomes = []
    for everything, options in [
        (True, {}),
        (False, {"find_unused_parameters": True}),
        (False, {"find_unused_parameters": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}),
    ]:
        inner = Branches(everything)
        model, optimizer, state = prepared(inner, options)
        for step in range(1, 12):
            inner.step = step
            before = inner.right.weight.detach().clone()
            run(model, optimizer, [step])
            assert step % 2 or not torch.equal(before, inner.right.weight)
        outcomes.append((weights(model), state.state_dict()))
        assert not any(name.startswith("frozen") for name in state.state_dict()["v"])
    for found, state_dict in outcomes[1:]:
        assert torch.equal(found, outcomes[0][0])
        assert same(state_dict["v"], outcomes[0][1]["v"])


def accumulation() -> None:
    """Four small batches, three under no_sync, are one big one."""
    results = []
    for parts in (1, 4):
        model, optimizer, state = prepared(net(), {"gradient_as_bucket_view": parts == 4})
        for step in range(9):
            optimizer.zero_grad()
            x, y = batch(step, dist.get_rank())
            pieces = list(zip(x.chunk(parts), y.chunk(parts), strict=True))
            with model.no_sync():
                for one, labels in pieces[:-1]:
                    (nn.functional.cross_entropy(model(one), labels) / parts).backward()
            (nn.functional.cross_entropy(model(pieces[-1][0]), pieces[-1][1]) / parts).backward()
            optimizer.step()
        assert state.steps == 9
        results.append(weights(model))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-5)


def memory() -> tuple[float, float, float]:
    """Fp32 values a parameter of all tensors that a state keeps: with momentum and without, after the warm-up; and in
    it."""
    found = []
    for momentum, warmup_steps in ((0.9, 2), (0.0, 2), (0.9, 99)):
        using = DGC(density=0.001, warmup=(0.02,), warmup_steps=warmup_steps)
        inner = nn.Sequential(nn.Flatten(), nn.Linear(50, 1000), nn.ReLU(), nn.Linear(1000, 4000), nn.Linear(4000, 4))
        model = DDP(inner, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
        state = attach(model, optimizer, using)
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, 0, 0).backward()
            optimizer.step()
        mine = {p.data_ptr() for p in model.parameters()} | {p.grad.data_ptr() for p in model.parameters()}
        found.append(sum(kept(state, set(), mine).values()) / 4 / sum(p.numel() for p in model.parameters()))
    return found[0], found[1], found[2]


def kept(thing: Any, seen: set[int], not_counted: set[int]) -> dict[int, int]:
    """Bytes of every storage that can be reached from a thing of ours, by address."""
    if id(thing) in seen:
        return {}
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        storage = thing.untyped_storage()
        return {} if thing.data_ptr() in not_counted else {storage.data_ptr(): storage.nbytes()}
    if isinstance(thing, dict):
        inside = list(thing.values())
    elif isinstance(thing, list | tuple | set):
        inside = list(thing)
    elif type(thing).__module__.startswith("elastic_dgc"):
        inside = list(vars(thing).values())
    else:
        return {}
    found: dict[int, int] = {}
    for one in inside:
        found |= kept(one, seen, not_counted)
    return found


def test_buckets_do_not_matter() -> None:
    run_ranks(2, buckets)


def test_nor_do_memory_formats() -> None:
    run_ranks(2, channels_last)


def test_unused_and_frozen_parameters() -> None:
    run_ranks(2, unused)


def test_no_sync_accumulates_to_one_big_batch() -> None:
    run_ranks(2, accumulation)


def test_a_state_keeps_two_values_a_parameter_and_little_more() -> None:
    with_momentum, without, in_warmup = run_ranks(1, memory)[0]
    assert 2 <= with_momentum < 2 * 1.05
    assert 1 <= without < 1 * 1.05
    assert in_warmup < 2 + 0.2  # the filter's small groups, an eighth of a vector, go when the warm-up does
