"""A step that is refused leaves BatchNorm's running statistics, and every other buffer, as they were before it."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp.ranks import DDP, batch, net, run_ranks, same
from torch import Tensor, nn

from elastic_dgc.ddp import DGC, attach
from elastic_dgc.errors import Diverged

pytestmark = pytest.mark.processes

CONFIG = DGC(density=0.1, warmup=(1.0,), warmup_steps=2, min_numel=100)


class Normed(nn.Module):
    """BatchNorm before the first parameter too, an average that is replaced and not changed in place, a buffer that is
    made late; all of it runs again in the backward pass, the first norm after the hook."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.BatchNorm2d(2, affine=False), net()
        self.inner.norm = nn.BatchNorm2d(6)
        self.register_buffer("average", torch.zeros(2))
        self.register_buffer("late", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.average = 0.9 * self.average + 0.1 * x.detach().mean((0, 2, 3))
            self.late = torch.ones(3) if self.late is None else self.late + 1
        again = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
        out: Tensor = again(self.inner, again(self.first, x))
        return out


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.clone() for name, one in model.named_buffers()}


def trained(bad_steps: set[int], passes: int, scaled: bool, **options: Any) -> dict[str, Tensor]:
    """Weights and buffers after steps 0 to 5, those of `bad_steps` with a NaN on rank 1 before each is done well."""
    rank = dist.get_rank()
    model = DDP(Normed(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=scaled)
    state = attach(model, optimizer, CONFIG, scaler=scaler)
    tries = [(step, bad) for step in range(6) for bad in (True, False) if not bad or step in bad_steps]
    for step, bad in tries:
        before = buffers(model.module)
        optimizer.zero_grad()
        for index in range(passes):
            last = index == passes - 1
            x, y = batch(10 * step + index, rank)
            with contextlib.nullcontext() if last else model.no_sync():
                # the input's gradient, through the first norm, is computed after the hook has run
                loss = nn.functional.cross_entropy(model(x.requires_grad_()), y)
                scaler.scale(loss * (torch.nan if bad and rank == 1 and not index else 1.0)).backward()
            assert x.grad is not None
        assert same(buffers(model.module), before) is bad, (step, options)
        scaler.step(optimizer)
        scaler.update()
    assert (state.steps, state.skipped) == (6, len(bad_steps))
    return {**buffers(model.module), **dict(model.module.named_parameters())}


def refused() -> None:
    for scaled, passes, options in [
        (False, 1, {}),
        (True, 3, {"broadcast_buffers": False}),
        (False, 2, {"broadcast_buffers": False, "find_unused_parameters": True}),
    ]:
        straight = trained(set(), passes, scaled, **options)
        assert same(trained({0, 1, 4}, passes, scaled, **options), straight), (scaled, passes, options)


def at_the_end() -> None:
    """The statistics that a diverged run is saved with are those of its last step; passes without a graph are not
    undone."""
    inner = Normed()
    inner.register_buffer("expanded", torch.ones(1).expand(7))  # less memory than elements: not even a copy fits in
    model = DDP(inner, broadcast_buffers=False, init_sync=False)
    state = attach(model, torch.optim.AdamW(model.parameters()), CONFIG)
    x, y = batch(0, dist.get_rank())
    before = buffers(model.module)
    with torch.no_grad():
        model(x)
    calibrated = buffers(model.module)
    assert not same(before, calibrated)
    with pytest.raises(Diverged):
        (nn.functional.cross_entropy(model(x), y) * torch.nan).backward()
    assert same(buffers(model.module), calibrated)
    assert not state.statistics.taken


@pytest.mark.parametrize("scenario", [refused, at_the_end], ids=lambda scenario: scenario.__name__)
def test_buffers_of_a_refused_step(scenario: Any) -> None:
    run_ranks(2, scenario)
