"""The transaction: the number of workers changes nothing, a skip changes nothing, everything adds up."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from simulation import Group, SmallNet, batches, cross_entropy, settings, shared_digests
from torch import nn

from elastic_dgc.compression import dgc
from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.errors import CompressionOff, Disagreement, PeerLost
from elastic_dgc.exchange.ask import Kind
from elastic_dgc.exchange.memory import Loss, Network
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.step.config import OptimizerConfig
from elastic_dgc.step.replica import Replica

attempt_module = importlib.import_module("elastic_dgc.step.attempt")

EXCHANGES = ["dgc", "dense", "dense-bf16"]
OPTIMIZERS = {
    "sgd": OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=1e-3),
    "nesterov": OptimizerConfig(lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3, decay_vectors=False),
    "no momentum": OptimizerConfig(lr=0.1, momentum=0.0),
    "adamw": OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.01),
}


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_number_of_workers_does_not_change_a_bit(exchange: str, optimizer: str) -> None:
    """All shared and owned state after 8 attempts, through warm-up and after; 6 workers for 4 leaves two spares."""
    using = settings(exchange=exchange, optimizer=OPTIMIZERS[optimizer])
    states = [Group(workers, using).run(8).state() for workers in (1, 2, 3, 4, 6)]
    assert all(state == states[0] for state in states)


def test_values_of_16_bits_on_the_wire_keep_the_promise() -> None:
    for kind in ("bf16", "fp16"):
        using = settings(compression=CompressionConfig(density=0.05, warmup=(), min_numel=20, values=kind, clip=0.5))
        assert Group(1, using).run(6).state() == Group(3, using).run(6).state()


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_what_was_accumulated_was_applied_or_is_still_in_v(exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: with plain error feedback and lr 1, weights + sum(v) move by the sum of the gradients alone."""
    using = settings(exchange=exchange, optimizer=OptimizerConfig(lr=1.0, momentum=0.0), max_skips=99)
    using = replace(using, schedule=using.schedule.with_values(kind="constant"))
    group = Group(2, using)
    replica = group.replicas[0]

    def weights() -> torch.Tensor:
        return replica.weights.double()

    gradients: list[torch.Tensor] = []

    def seen(of: Replica, *rest: Any) -> dict[int, bytes]:
        for k in rest[-1]:  # 4 full shares in a step
            found = of.gradient(k)
            flat = torch.cat([found[segment.name].flatten() for segment in of.layout.segments])
            gradients.append(flat.double() / 4)
        return compress(of, *rest)

    compress = attempt_module.prepare
    monkeypatch.setattr(attempt_module, "prepare", seen)
    for _ in range(6):
        before = weights() - group.pending()
        gradients.clear()
        group.step()
        torch.testing.assert_close(
            before - torch.stack(gradients).sum(0), weights() - group.pending(), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("phase", ["vote", "exchange"])
@pytest.mark.parametrize("reached", [0, 1, None])
def test_a_worker_lost_before_apply_changes_nothing_on_the_survivors(phase: str, reached: int | None) -> None:
    """Until the flip nothing has changed (R7); a survivor that has everything it needs may be one step ahead."""
    group = Group(3, settings()).run(4)
    before = [shared_digests(replica) for replica in group.replicas]
    results = group.step_each(Network(losses=[Loss(worker=1, phase=phase, attempt=4, reached=reached)]))
    for rank in (0, 2):
        if isinstance(results[rank].error, PeerLost):
            assert shared_digests(group.replicas[rank]) == before[rank]
        else:
            assert results[rank].get().committed


def test_workers_with_other_settings_are_found_in_the_first_vote() -> None:
    group = Group(2, settings())
    group.replicas[1].settings = replace(settings(), identity=b"x" * 16)
    for result in group.step_each():
        assert isinstance(result.error, Disagreement)
        assert "identity" in str(result.error)


def test_k_identical_virtual_workers_equal_one() -> None:
    """The same share on each of 4 gives what one virtual worker alone gets from it, while clipping is idle."""

    def same(number: int, k: int) -> list[MicroBatch]:
        return batches(number, 0)

    class Plain(SmallNet):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.0)

    four, one = (Group(1, settings(k), model=Plain, batches_of=same) for k in (4, 1))
    for _ in range(6):
        four.step()
        one.step()
    for name, parameter in one.replicas[0].trained.items():
        torch.testing.assert_close(parameter, four.replicas[0].trained[name], rtol=1e-5, atol=1e-6)


def test_parameters_without_a_gradient_are_left_as_they_are() -> None:
    class Unused(SmallNet):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(8, 8)
            self.head.bias.requires_grad_(False)

    group = Group(2, settings(optimizer=OptimizerConfig(lr=0.1, weight_decay=0.0)), model=Unused)
    before = {n: p.clone() for n, p in group.replicas[0].parameters.items()}
    group.run(5)
    after = group.replicas[0].parameters
    assert torch.equal(before["unused.weight"], after["unused.weight"])
    assert torch.equal(before["head.bias"], after["head.bias"])
    assert not torch.equal(before["head.weight"], after["head.weight"])


def test_dense_to_sparse_and_back_loses_nothing() -> None:
    """Densities 1, 0.05, 1: the dense step sends what the sparse ones left, and the momentum goes on."""
    compression = CompressionConfig(density=1.0, warmup=(1.0, 0.05), warmup_steps=3, min_numel=20)
    group = Group(2, settings(compression=compression))
    norms = []
    for _ in range(8):
        outcome = group.step()
        norms.append((outcome.plan.whole, float(group.pending().norm())))
    assert [whole for whole, _ in norms] == [True] * 3 + [False] * 3 + [True] * 2
    assert all((norm == 0) == whole for whole, norm in norms)
    assert group.replicas[0].owned[0].u.norm() > 0


def test_bytes_are_counted_where_they_are_packed_and_where_they_are_sent() -> None:
    network = Network()
    group = Group(2, settings(compression=CompressionConfig(density=0.02, warmup=(), min_numel=20)))
    outcome = group.step(network)
    assert not outcome.plan.whole
    assert outcome.upload_bytes == group.replicas[0].counters.upload_bytes
    assert network.bytes_sent(kind=Kind.MESSAGE) == outcome.upload_bytes  # two workers: each message travels once
    assert outcome.upload_bytes == 4 * outcome.plan.promised_bytes
    dense = Group(2, settings(exchange="dense")).run(2).replicas[0].counters
    assert dense.upload_bytes == dense.dense_bytes == 2 * 4 * 4 * group.replicas[0].layout.numel
    half = Group(2, settings(exchange="dense-bf16")).run(1).replicas[0].counters
    assert half.dense_bytes == 2 * half.upload_bytes


def test_compression_that_does_not_happen_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    compression = CompressionConfig(density=0.02, warmup=(), min_numel=20)
    group = Group(2, settings(compression=compression, require_compression=True)).run(1)
    select = dgc.select
    monkeypatch.setattr(dgc, "select", lambda layout, v, density, workspace: select(layout, v, 0.5))
    before = group.state()
    for result in group.step_each():
        assert isinstance(result.error, CompressionOff)
        assert "over twice the" in str(result.error)
    assert group.state() == before


def test_gradient_scale_follows_the_samples_that_were_there() -> None:
    """Two full shares out of four weigh as a mean over their samples: dense SGD on the union of the samples."""

    def short(number: int, k: int) -> list[MicroBatch]:
        return [MicroBatch(b.data, b.count) for b in batches(number, k)[: 2 if k < 2 else 0]]

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(25, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x.flatten(1))

    using = settings(exchange="dense", optimizer=OptimizerConfig(lr=0.5, momentum=0.0))
    group = Group(2, using, model=Linear, batches_of=short)
    model = Linear()
    model.load_state_dict(group.replicas[0].model.state_dict())
    group.step()
    images = torch.cat([b.data[0] for k in range(2) for b in batches(0, k)])
    labels = torch.cat([b.data[1] for k in range(2) for b in batches(0, k)])
    cross_entropy(model, (images, labels)).backward()
    for name, parameter in model.named_parameters():
        expected = parameter.detach() - using.lr(0) * parameter.grad
        torch.testing.assert_close(expected, group.replicas[0].trained[name].detach(), rtol=1e-5, atol=1e-6)
