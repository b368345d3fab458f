"""The transaction: the number of workers changes nothing, a skip changes nothing, everything adds up."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from functools import partialmethod
from typing import Any

import pytest
import torch
from simulation import SHARE, Group, SmallNet, batches, cross_entropy, settings
from torch import nn

from elastic_dgc.compression import dgc
from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.compression.layout import Layout
from elastic_dgc.errors import CompressionOff, Disagreement, Diverged, PeerLost, TaskFailed, UsageError
from elastic_dgc.exchange.ask import Kind
from elastic_dgc.exchange.memory import Loss, Network
from elastic_dgc.step.apply import make_applier
from elastic_dgc.step.compute import V_NORM_EVERY, MicroBatch
from elastic_dgc.step.config import OptimizerConfig
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.total import Total

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

    compress = attempt_module._compress
    monkeypatch.setattr(attempt_module, "_compress", seen)
    for _ in range(6):
        before = weights() - group.pending()
        gradients.clear()
        group.step()
        torch.testing.assert_close(
            before - torch.stack(gradients).sum(0), weights() - group.pending(), atol=1e-5, rtol=0
        )


def test_residuals_beside_the_model_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of `residual_device`, here with two names of the one device there is."""
    using = settings(compression=CompressionConfig(density=0.05, warmup=(), min_numel=20, clip=0.5))
    here = Group(2, using).run(5)
    monkeypatch.setattr(Replica, "__init__", partialmethod(Replica.__init__, residual_device="cpu:0"))
    beside = Group(2, using)
    assert all(one._staging is not None for one in beside.replicas)
    assert beside.run(5).state() == here.state()


def bad_batch(at: int, virtual_worker: int, how: str):
    def of(number: int, k: int) -> list[MicroBatch]:
        found = batches(number, k)
        if (number, k) == (at, virtual_worker):
            if how == "inf":
                found[1].data[0].fill_(1e38)
            elif how == "nan":
                found[0].data[0][0, 0, 0, 0] = float("nan")
            else:
                raise ValueError(f"sample 17 is no image in {how}")
        return found

    return of


@pytest.mark.parametrize("how", ["inf", "nan"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_bad_share_leaves_everything_but_the_counters_bitwise_as_it_was(how: str, exchange: str) -> None:
    using = settings(exchange=exchange)
    group = Group(2, using, batches_of=bad_batch(3, 2, how)).run(3)
    before = group.state()
    outcome = group.step()
    after = group.state()
    assert not outcome.committed
    assert "virtual worker 2: " in outcome.reasons[0]
    assert {k: v for k, v in before.items() if k != "counters"} == {k: v for k, v in after.items() if k != "counters"}
    counters = group.replicas[1].counters
    assert (counters.attempt, counters.applied, counters.skipped) == (4, 3, 1)
    group.run(2)
    assert group.state() == Group(4, using, batches_of=bad_batch(3, 2, how)).run(6).state()
    assert group.replicas[0].counters.skips_in_a_row == 0


def test_a_learning_rate_that_blows_up_is_found_before_anything_is_written() -> None:
    def steep(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return 1e3 * cross_entropy(model, batch)

    group = Group(2, settings(optimizer=OptimizerConfig(lr=3e38, momentum=0.9)), loss=steep)
    before = group.state()
    outcome = group.step()
    assert not outcome.committed
    assert "learning rate 3e+38 makes" in outcome.reasons[0]
    after = group.state()
    assert {k: v for k, v in before.items() if k != "counters"} == {k: v for k, v in after.items() if k != "counters"}


def test_an_optimizer_whose_state_would_overflow_is_put_back_as_it_was() -> None:
    weight = nn.Parameter(torch.ones(3))
    layout = Layout.of({"w": weight}.items(), 1)
    applier = make_applier(OptimizerConfig(name="adamw", lr=0.1), layout, weight.data, {"w": weight})
    total = Total(3, torch.device("cpu"))
    assert applier.apply(total.take(torch.ones(3)), 0.1) is None
    before = {name: value.clone() for name, value in applier.state().items()}, weight.detach().clone()
    assert "not finite" in (applier.apply(total.take(torch.tensor([1.0, 3e38, 1.0])), 0.1) or "")
    assert torch.equal(weight, before[1])
    assert all(torch.equal(value, before[0][name]) for name, value in applier.state().items())
    with pytest.raises(UsageError, match="did you mean 'adam"):
        make_applier(OptimizerConfig(name="adamv", lr=0.1), {"w": weight})


def test_three_skips_in_a_row_end_the_run_with_a_diagnosis_on_everyone() -> None:
    def always(number: int, k: int) -> list[MicroBatch]:
        return bad_batch(number, 1, "nan")(number, k)

    group = Group(3, settings(), batches_of=always).run(2)
    results = group.step_each()
    for result in results:
        assert isinstance(result.error, Diverged)
        assert "3 attempts in a row" in str(result.error)
        assert "virtual worker 1: gradient of " in str(result.error)


def test_an_exception_in_one_share_reaches_everyone_with_its_place_and_hangs_nobody() -> None:
    group = Group(3, settings(), batches_of=bad_batch(2, 3, "the folder")).run(2)
    before = group.state()
    errors = [result.error for result in group.step_each()]
    for error in errors:
        assert isinstance(error, TaskFailed)
        assert "ValueError: sample 17 is no image in the folder (virtual worker 3, attempt 2, at " in str(error)
        assert "test_attempt.py" in str(error)
    assert isinstance(errors[2].__cause__, ValueError)
    assert group.state() == before


def test_a_loss_that_is_no_mean_tensor_is_named() -> None:
    group = Group(1, settings(), loss=lambda model, batch: 3.0)
    with pytest.raises(TaskFailed, match="must return the mean loss as a tensor"):
        group.step()


@pytest.mark.parametrize("phase", ["vote", "exchange"])
@pytest.mark.parametrize("reached", [0, 1, None])
def test_a_worker_lost_before_apply_changes_nothing_on_the_survivors(phase: str, reached: int | None) -> None:
    """Until the flip nothing has changed (R7); a survivor that has everything it needs may be one step ahead."""
    group = Group(3, settings()).run(4)
    before = [replica.shared_digests() for replica in group.replicas]
    results = group.step_each(Network(losses=[Loss(worker=1, phase=phase, attempt=4, reached=reached)]))
    for rank in (0, 2):
        if isinstance(results[rank].error, PeerLost):
            assert group.replicas[rank].shared_digests() == before[rank]
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


def test_a_virtual_worker_without_samples_runs_no_forward_and_the_rest_counts() -> None:
    def short(number: int, k: int) -> list[MicroBatch]:
        return batches(number, k) if k < 2 else []

    group = Group(2, settings(), batches_of=short)
    outcome = group.step()
    assert outcome.decision.count == 2 * SHARE
    assert group.replicas[1].owned[3].v.abs().sum() > 0  # weight decay alone
    assert group.state() == Group(4, settings(), batches_of=short).run(1).state()


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
