"""What an attempt saves: memory, time while others are waited for, reading what nobody looks at."""

from __future__ import annotations

import importlib
import math
from functools import partialmethod
from typing import Any

import pytest
import torch
from simulation import Group, SmallNet, bad_batch, batches, cross_entropy, settings
from torch import nn

from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.step.compute import V_NORM_EVERY, MicroBatch
from elastic_dgc.step.replica import Replica

attempt_module = importlib.import_module("elastic_dgc.step.attempt")


def test_residuals_beside_the_model_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of `residual_device`, here with two names of the one device there is."""
    using = settings(compression=CompressionConfig(density=0.05, warmup=(), min_numel=20, clip=0.5))
    here = Group(2, using).run(5)
    monkeypatch.setattr(Replica, "__init__", partialmethod(Replica.__init__, residual_device="cpu:0"))
    beside = Group(2, using)
    assert all(one._staging is not None for one in beside.replicas)
    assert beside.run(5).state() == here.state()


def test_four_values_for_each_parameter_and_hosted_virtual_worker() -> None:
    """Two hosted, in a network of a million parameters, after a sparse step: u, v, their other copies, and no more than
    5 % beside them. A worker has the weights, the sum and, in backward, a gradient, however many it hosts."""

    class Large(SmallNet):
        def __init__(self) -> None:
            super().__init__()
            self.large = nn.Parameter(torch.zeros(2048, 2048))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.large.sum()

    using = settings(2, compression=CompressionConfig(density=0.001, warmup=(), min_numel=20))
    replica = Group(1, using, model=Large).run(2).replicas[0]
    numel = replica.layout.numel
    seen: dict[int, int] = {}
    for one in vars(replica).values():
        for tensor in _tensors(one):
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    buffers = sum(b.nbytes for b in replica.model.buffers()) * 5  # the model's, and two copies for each
    assert all(parameter.grad is None for parameter in replica.trained.values())
    assert sum(seen.values()) - buffers <= 4 * numel * (2 * 4 * 1.05 + 2)  # + weights and sum
    assert sum(seen.values()) >= 4 * numel * (2 * 4 + 2)


def _tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in an object of ours, through containers and modules."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, dict):
        return [t for one in value.values() for t in _tensors(one)]
    if isinstance(value, (list, tuple)):
        return [t for one in value for t in _tensors(one)]
    if type(value).__module__.startswith("elastic_dgc."):
        return [t for one in vars(value).values() for t in _tensors(one)]
    return []


def test_the_norm_of_v_is_measured_now_and_then_at_the_same_attempts_by_everyone() -> None:
    compression = CompressionConfig(density=0.05, warmup=(1.0, 0.2), warmup_steps=2, min_numel=20, values="int8")
    group = Group(2, settings(compression=compression))
    measured = {}
    for attempt in range(2 * V_NORM_EVERY + 1):
        v = torch.cat([one.v for replica in group.replicas for one in replica.owned.values()]).double().norm()
        norm = group.step().decision.v_norm
        if not math.isnan(norm):
            measured[attempt] = norm
            assert norm == pytest.approx(float(v), rel=1e-5)
    assert list(measured) == [0, V_NORM_EVERY, 2 * V_NORM_EVERY]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_compressing_while_the_rows_are_on_their_way_changes_nothing(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full steps, a step of fewer samples (done again), one that is skipped, and a task that counts something else."""

    def uneven(number: int, k: int) -> list[MicroBatch]:
        if number == 3 and k == 1:
            return batches(number, k)[:1]
        return bad_batch(5, 2, "inf")(number, k)

    def counting(model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
        return cross_entropy(model, batch), 3

    ahead: list[bool] = []
    packed = attempt_module._Ahead.packed

    def seen(self: Any, count: int) -> dict[int, bytes]:
        found = packed(self, count)
        ahead.append(bool(self.done))
        return found

    monkeypatch.setattr(attempt_module._Ahead, "packed", seen)
    using = settings(compression=CompressionConfig(density=0.05, warmup=(), min_numel=20, clip=0.5), max_skips=9)
    for loss in (cross_entropy, counting):
        ahead.clear()
        fast = Group(workers, using, batches_of=uneven, loss=loss).run(8)
        if loss is cross_entropy:
            # attempt 3 counts less, so 4 is not done ahead; 5 is skipped, which is no vote of a count
            assert ahead[::workers] == [True, True, True, False, False, True, True]
        else:
            assert not any(ahead)
        with monkeypatch.context() as without:
            without.setattr(attempt_module._Ahead, "worthwhile", False)
            slow = Group(workers, using, batches_of=uneven, loss=loss).run(8)
        assert fast.state() == slow.state()
