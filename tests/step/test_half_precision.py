"""Half precision, the loss scale, and overflows: any number of workers, and nothing of a bad attempt remains."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from simulation import Group, batches, cross_entropy, settings
from torch import nn

from elastic_dgc.precision.autocast import PRECISIONS
from elastic_dgc.precision.loss_scale import CAP, FLOOR, INITIAL, LossScale
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.step.config import OptimizerConfig
from elastic_dgc.step.settings import StepSettings

EXCHANGES = ("dgc", "dense", "dense-bf16")
LIVELY = LossScale(INITIAL, growth_every=3)  # moves up and down within a short test


def using(precision: str, **changes: Any) -> StepSettings:
    scale = LIVELY if precision == "fp16" else LossScale()
    return settings(precision=precision, loss_scale=scale, **changes)


def cut_into(parts: int):
    """The batches of the simulation as one micro-batch or as three, of 2, 1 and 1 samples."""

    def of(number: int, k: int) -> list[MicroBatch]:
        images, labels = (torch.cat(one) for one in zip(*(b.data for b in batches(number, k)), strict=True))
        ends = [0, 4] if parts == 1 else [0, 2, 3, 4]
        return [MicroBatch((images[a:b], labels[a:b]), b - a) for a, b in pairwise(ends)]

    return of


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("precision", "exchange"), list(product(PRECISIONS, EXCHANGES)))
def test_the_matrix_is_equal_at_any_number_of_workers(
    precision: str, exchange: str, nesterov: bool, parts: int
) -> None:
    """Over 30 attempts, through the warm-up, and in fp16 through overflows of a loss scale that keeps growing."""
    optimizer = OptimizerConfig(lr=0.05, momentum=0.9, nesterov=nesterov, weight_decay=1e-3)
    wanted = using(precision, exchange=exchange, optimizer=optimizer)
    runs = [Group(workers, wanted, batches_of=cut_into(parts)).run(30) for workers in (1, 2, 4)]
    assert runs[0].state() == runs[1].state() == runs[2].state()
    counters = runs[0].replicas[0].counters
    assert counters.applied >= 20
    assert (counters.skipped > 0) == (precision == "fp16")


def poisoned(where: str, at: int, virtual_worker: int):
    """Batches and loss that go wrong once: `where` is 'gradient', 'loss', 'norm' or 'activation'. With three
    micro-batches, in the second."""
    gone_wrong = torch.tensor(float(at * 100 + virtual_worker) + 0.5)  # told to the loss by a pixel's value

    def of(number: int, k: int) -> list[MicroBatch]:
        found = cut_into(3)(number, k)
        if (number, k) == (at, virtual_worker):
            found[1].data[0][0, 0, 0, 0] = gone_wrong
        return found

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if batch[0][0, 0, 0, 0] != gone_wrong:
            return cross_entropy(model, batch)
        if where == "activation":
            return cross_entropy(model, (batch[0] * math.inf, batch[1]))
        usual = cross_entropy(model, batch)
        if where == "loss":
            return usual * math.nan
        # d/dx of sqrt at 0 is infinite: the loss is finite, its gradient is not
        weight = next(model.parameters())
        extra = (weight - weight.detach()).abs().sum().sqrt() if where == "gradient" else 1e30 * weight.sum()
        return usual + (extra - extra.detach())

    return of, loss


@pytest.mark.parametrize("where", ["gradient", "loss", "norm", "activation"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("exchange", ["dgc", "dense"])
def test_an_overflow_leaves_the_run_as_if_its_attempt_had_done_nothing(
    precision: str, where: str, exchange: str
) -> None:
    """Parameters, u, v, buffers, schedule: bitwise those of the run in which nobody computed that attempt. Resumed
    right after it, too."""
    of, loss = poisoned(where, 7, 2)
    wanted = using(precision, exchange=exchange)
    bad = Group(2, wanted, loss=loss, batches_of=of).run(7)
    scale = bad.replicas[0].counters.loss_scale
    assert not bad.step().committed
    after = bad.replicas[0].counters
    moved = precision == "fp16" and where in ("gradient", "norm")
    assert after.loss_scale == (scale / 2 if moved else scale)

    idle = Group(2, wanted, batches_of=cut_into(3)).run(7)
    resumed = Group(4, wanted, batches_of=cut_into(3))
    for replica in idle.replicas:
        replica.counters = replace(after)
    for replica in resumed.replicas:
        replica.load_shared(*bad.replicas[0].export_shared())
        for k in replica.owned:
            replica.owned[k].load(*next(one.owned[k] for one in bad.replicas if k in one.owned).export())
    assert bad.run(6).state() == idle.run(6).state() == resumed.run(6).state()
    assert bad.replicas[0].counters.applied >= 10


def test_the_loss_scale_changes_nothing_where_the_exponent_has_room() -> None:
    """R6: fp32 and bf16."""
    for precision in ("fp32", "bf16"):
        runs = [Group(2, settings(precision=precision, loss_scale=LossScale(scale))).run(8) for scale in (1.0, 2.0**12)]
        states = [{k: v for k, v in run.state().items() if k != "counters"} for run in runs]
        assert states[0] == states[1]


def test_skips_that_halve_the_scale_do_not_end_a_run_and_others_do() -> None:
    """An overflow that never ends: the scale falls to its floor, and then three more attempts are the last."""

    def steep(model: nn.Module, batch: Any) -> torch.Tensor:
        weight = next(model.parameters())
        extra = (weight - weight.detach()).abs().sum().sqrt()
        return cross_entropy(model, batch) + (extra - extra.detach())

    group = Group(2, using("fp16"), loss=steep)
    halvings = int(math.log2(INITIAL / FLOOR))
    outcomes = [group.step() for _ in range(halvings + 3)]
    assert [one.hopeless for one in outcomes] == [False] * (halvings + 2) + [True]
    assert outcomes[-1].loss_scale == FLOOR
    fixed = Group(1, settings(precision="fp16", loss_scale=LossScale(1024.0)), loss=steep)
    assert [fixed.step().hopeless for _ in range(3)] == [False, False, True]


def test_the_scale_grows_after_quiet_attempts_up_to_its_cap() -> None:
    policy = LossScale(CAP / 2, growth_every=2)
    steps: list[tuple[float, int]] = [(CAP / 2, 0)]
    for _ in range(4):
        steps.append(policy.applied(*steps[-1]))
    assert steps == [(CAP / 2, 0), (CAP / 2, 1), (CAP, 0), (CAP, 0), (CAP, 0)]
    assert policy.overflowed(CAP) == CAP / 2
    assert policy.overflowed(FLOOR) == FLOOR
