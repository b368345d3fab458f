"""What is skipped, what ends a run, and what stays as it was."""

from __future__ import annotations

import math

import pytest
import torch
from simulation import SHARE, Group, SmallNet, bad_batch, batches, cross_entropy, settings, shared_digests
from torch import nn

from elastic_dgc.compression.layout import Layout
from elastic_dgc.errors import MessageError, PeerLost, TaskFailed, UsageError
from elastic_dgc.step.apply import make_applier
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.step.config import OptimizerConfig
from elastic_dgc.step.total import Total

EXCHANGES = ["dgc", "dense", "dense-bf16"]


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


def test_samples_that_are_not_finite_are_named_and_only_they() -> None:
    """The one cause that a user can mend: not the first eight samples of the share, but those that are wrong."""

    def with_rows(number: int, k: int) -> list[MicroBatch]:
        found = batches(number, k)
        rows = [tuple(100 * k + SHARE // 2 * i + j for j in range(one.count)) for i, one in enumerate(found)]
        if (number, k) == (1, 2):
            found[0].data[0][1, 0, 0, 0] = float("nan")
            found[1].data[0][0, 0, 1, 1] = float("inf")
        return [MicroBatch(one.data, one.count, row) for one, row in zip(found, rows, strict=True)]

    group = Group(2, settings(), batches_of=with_rows).run(1)
    outcome = group.step()
    assert not outcome.committed
    assert outcome.reasons[0].startswith("virtual worker 2: input of row 201, 202 is not finite, ")
    assert "input" not in Group(2, settings(), batches_of=bad_batch(0, 1, "inf")).step().reasons[0]


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


def test_three_skips_in_a_row_are_told_to_everyone() -> None:
    def always(number: int, k: int) -> list[MicroBatch]:
        return bad_batch(number, 1, "nan")(number, k)

    group = Group(3, settings(), batches_of=always).run(2)
    for result in group.step_each():
        assert result.value.hopeless
        assert "virtual worker 1: gradient of " in result.value.reasons[0]


@pytest.mark.parametrize("exchange", ["dgc", "dense"])
def test_a_residual_that_memory_forgot_is_never_applied(exchange: str) -> None:
    """Where v is measured, and after any skip, it is a skip; elsewhere nobody can read the message, and nothing has
    changed."""

    def forget(at: int) -> Group:
        group = Group(2, settings(exchange=exchange)).run(at)
        group.replicas[1].owned[3].v[5] = math.nan
        return group

    measured = forget(0)
    for _ in range(3):
        assert measured.step().reasons == ("virtual worker 3: its residual v is not finite",)
    between = forget(4)
    before = [shared_digests(replica) for replica in between.replicas]
    errors = [result.error for result in between.step_each()]
    assert any(isinstance(error, MessageError) and "not finite" in str(error) for error in errors)
    assert all(isinstance(error, (MessageError, PeerLost)) for error in errors)
    assert [shared_digests(replica) for replica in between.replicas] == before


def test_an_exception_in_one_share_reaches_everyone_with_its_place_and_hangs_nobody() -> None:
    group = Group(3, settings(), batches_of=bad_batch(2, 3, "the folder")).run(2)
    before = group.state()
    errors = [result.error for result in group.step_each()]
    for error in errors:
        assert isinstance(error, TaskFailed)
        assert "ValueError: sample 17 is no image in the folder (virtual worker 3, attempt 2, at " in str(error)
        assert "simulation.py" in str(error)
    assert isinstance(errors[2].__cause__, ValueError)
    assert group.state() == before


def test_a_loss_that_is_no_mean_tensor_is_named() -> None:
    group = Group(1, settings(), loss=lambda model, batch: 3.0)
    with pytest.raises(TaskFailed, match="must return the mean loss as a tensor"):
        group.step()


def test_a_virtual_worker_without_samples_runs_no_forward_and_the_rest_counts() -> None:
    def short(number: int, k: int) -> list[MicroBatch]:
        return batches(number, k) if k < 2 else []

    group = Group(2, settings(), batches_of=short)
    outcome = group.step()
    assert outcome.decision.count == 2 * SHARE
    assert group.replicas[1].owned[3].v.abs().sum() > 0  # weight decay alone
    assert group.state() == Group(4, settings(), batches_of=short).run(1).state()


def test_a_buffer_that_is_infinite_by_design_is_no_sign_of_trouble() -> None:
    class Masked(SmallNet):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.softmax(self.mask, 1)[0]

    group = Group(2, settings(), model=Masked)
    assert all(group.step().committed for _ in range(3))
    replica = group.replicas[0]
    assert replica.first_bad(replica.owned[0].export()[0], "buffer/") is None
    replica.owned[0].buffers["norm.running_mean"][2] = math.inf
    assert replica.first_bad(replica.owned[0].buffers) == "norm.running_mean (1 of 6 values not finite)"
    assert not group.step().committed
