"""Loss scaling: the residual is kept unscaled, and an overflow on one rank is a skipped step on all."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp.ranks import DDP, listen, loss_of, net, replicas_are_equal, run_ranks, same, train, weights

from elastic_dgc.ddp import DGC, DGCState, attach
from elastic_dgc.errors import UsageError

pytestmark = pytest.mark.processes

CONFIG = DGC(density=0.05, warmup=(1.0,), warmup_steps=2, min_numel=100)


def prepared(**options: Any) -> tuple[DDP, torch.optim.Optimizer, DGCState]:
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    return model, optimizer, attach(model, optimizer, CONFIG, **options)


def scaled_step(model: DDP, optimizer: Any, scaler: torch.amp.GradScaler, step: int, factor: float = 1.0) -> None:
    optimizer.zero_grad()
    scaler.scale(loss_of(model, step, dist.get_rank()) * factor).backward()
    scaler.step(optimizer)
    scaler.update()


def overflow(fused: bool) -> None:
    """Rank 1 overflows in step 4: bitwise nothing but the counters and the scale changes, on either rank; all else is
    the run without a scaler."""
    model, optimizer, _ = prepared()
    expected = [weights(model) for _ in train(model, optimizer, range(8))]

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01, fused=fused)
    state = attach(model, optimizer, CONFIG, scaler=scaler)
    for step in range(8):
        if step == 4:
            before, kept, scale = weights(model), state.state_dict(), scaler.get_scale()
            told, warned = listen(logging.DEBUG), listen()
            scaled_step(model, optimizer, scaler, step, 1e36 if dist.get_rank() == 1 else 1.0)
            assert torch.equal(weights(model), before)
            after = state.state_dict()
            assert same(kept["u"], after["u"])
            assert same(kept["v"], after["v"])
            assert (kept["applied"], kept["skipped"] + 1) == (after["applied"], after["skipped"])
            assert scaler.get_scale() == scale / 2
            assert len(told) == 1
            assert told[0].endswith("step 5 (applied: 4, skipped: 1) is skipped, nothing changes: rank 1: an overflow")
            assert not warned
        scaled_step(model, optimizer, scaler, step)
        if fused:  # its own arithmetic for lr, which rounds differently
            torch.testing.assert_close(weights(model), expected[step], rtol=0, atol=1e-5)
        else:
            assert torch.equal(weights(model), expected[step])
        assert replicas_are_equal(model)
    assert (state.steps, state.skipped) == (8, 1)


def sum_overflows() -> None:
    """A sum that fits, but not times the scale: the residual keeps everything, and the scale falls."""
    model, optimizer, state = prepared(scaler=(scaler := torch.amp.GradScaler("cpu", init_scale=2.0)))
    scaled_step(model, optimizer, scaler, 0)
    scaled_step(model, optimizer, scaler, 1)
    before, v = weights(model), state.residual.v
    v[0] = 3e38  # what two ranks have not sent yet
    scaled_step(model, optimizer, scaler, 2)
    assert torch.equal(weights(model), before)
    assert (state.steps, state.skipped, scaler.get_scale()) == (2, 1, 1.0)
    assert v[0] > 2.9e38
    v[0] = 0.0
    scaled_step(model, optimizer, scaler, 3)
    assert state.steps == 3


def not_handed_over() -> None:
    scaler = torch.amp.GradScaler("cpu")
    model, optimizer, _ = prepared()
    with pytest.raises(UsageError, match="scaler=scaler"):
        scaled_step(model, optimizer, scaler, 0)
    model, optimizer, state = prepared(scaler=False)  # the user says that it is another model's
    for _ in train(model, optimizer, range(2)):
        pass
    assert state.steps == 2
    model, optimizer, state = prepared(scaler=torch.amp.GradScaler("cpu"))  # given, but not used
    with pytest.raises(UsageError, match="has not scaled a loss"):
        loss_of(model, 0, dist.get_rank()).backward()


def autocast() -> None:
    """bf16 needs no scaler."""
    model, optimizer, state = prepared()
    losses = []
    for step in range(25):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, step % 5, dist.get_rank())
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert replicas_are_equal(model)
    assert state.steps == 25
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_on_one_rank_changes_nothing_anywhere(fused: bool) -> None:
    run_ranks(2, overflow, fused)


def test_a_sum_that_does_not_fit_stays_in_the_residual() -> None:
    run_ranks(2, sum_overflows)


def test_a_scaler_that_was_not_handed_over_is_found() -> None:
    run_ranks(2, not_handed_over)


def test_bf16_autocast() -> None:
    run_ranks(2, autocast)
