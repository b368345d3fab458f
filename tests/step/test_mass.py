"""Lost residual is never more than what is reported, and what is reported is no more than votes leave open."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from simulation import Group, batches, settings
from torch import nn

from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.step.config import OptimizerConfig
from elastic_dgc.step.log import Entry
from elastic_dgc.step.mass import MassBound, lost_mass_bound
from elastic_dgc.step.plan import Plan
from elastic_dgc.step.prepare import prepare
from elastic_dgc.step.repair import Surroundings
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.row import Health, Request, Row
from elastic_dgc.step.settings import StepSettings

K = 2
OPTIMIZERS = {
    "plain": OptimizerConfig(momentum=0.9, weight_decay=0.01),
    "nesterov": OptimizerConfig(momentum=0.95, nesterov=True, weight_decay=0.01, decay_vectors=False),
    "none": OptimizerConfig(momentum=0.0),
    "adamw": OptimizerConfig(name="adamw", lr=0.01),
}


class Alone:
    """Two virtual workers in one replica whose gradients are drawn, through the code that a step uses."""

    def __init__(self, using: StepSettings) -> None:
        self.replica = Replica(nn.Linear(8, 5), using, range(K))
        self.bound = MassBound(using, self.replica.layout.numel)
        self.drawn = [0.0] * K  # norms of the last gradients
        self.numbers = torch.Generator().manual_seed(1)

    def draw(self, scale: float) -> torch.Tensor:
        return torch.randn(self.replica.layout.numel, generator=self.numbers) * scale

    def attempt(self, scale: float, plan: Plan, committed: bool, measured: bool, count: int = 4) -> None:
        rows = []
        for k, one in self.replica.owned.items():
            gradient = self.draw(scale * (1 + k))
            one.other_v.copy_(gradient)
            self.drawn[k] = float(gradient.double().norm())
            v_norm = float(one.v.norm()) if measured else math.nan
            rows.append(
                Row(Health.GOOD, Request.NONE, 0, 0, count, count, 1.0, float(gradient.norm()), v_norm, 8.0, bytes(16))
            )
        weights_norm = float(self.replica.weights.norm())
        if committed:
            prepare(self.replica, plan, K * count, rows, range(K))
            for one in self.replica.owned.values():
                if plan.whole:
                    one.other_v.zero_()
                one.flip(0)
            self.replica.weights.add_(self.draw(0.1))
        self.bound.decided(rows, plan, committed, weights_norm)


@st.composite
def attempts(draw: Any) -> tuple[float, Plan, bool, bool, int]:
    kind = draw(st.sampled_from(["fp32", "bf16", "int8"]))
    density = draw(st.sampled_from([0.05, 0.5, 1.0]))
    plan = Plan(density, "fp32" if density == 1 else kind, density == 1, "", 0)
    scale, count = draw(st.sampled_from([1e-4, 1.0, 300.0])), draw(st.sampled_from([1, 4]))
    return scale, plan, draw(st.booleans()), draw(st.booleans()), count


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@examples(max_examples=20, deadline=None)
@given(
    steps=st.lists(attempts(), min_size=1, max_size=12), clip=st.sampled_from([None, 0.5]), masking=st.booleans(),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
)  # fmt: skip
def test_no_more_is_lost_than_the_bound_says(
    optimizer: str, steps: list[Any], clip: Any, masking: bool, scale: float
) -> None:
    compression = CompressionConfig(min_numel=20, clip=clip, masking=masking)
    alone = Alone(settings(K, optimizer=OPTIMIZERS[optimizer], compression=compression))
    for step in steps:
        alone.attempt(*step)
        for k, one in alone.replica.owned.items():
            assert one.u is None or float(one.u.double().norm()) <= alone.bound.u[k]
            for recovered in (alone.draw(scale), -scale * one.v):  # somewhere; as far away as can be
                lost = float((one.v.double() - recovered.double()).norm())
                assert lost <= lost_mass_bound(alone.bound.v[k], recovered)


def test_what_votes_tell_is_used() -> None:
    """No bound of infinity would pass: a first step is told exactly, a measured v too, a whole step leaves 0."""
    using = settings(K, optimizer=OptimizerConfig(momentum=0.9), compression=CompressionConfig(min_numel=20))
    alone = Alone(using)
    sparse, whole = Plan(0.03, "fp32", False, "", 0), Plan(1.0, "fp32", True, "", 0)
    alone.attempt(1.0, sparse, True, False)
    assert alone.bound.u == pytest.approx([norm / 16 for norm in alone.drawn], rel=1e-4)  # count 8 of 4, scale 8
    for _ in range(5):
        alone.attempt(1.0, sparse, True, False)
    loose = list(alone.bound.v)
    alone.attempt(1.0, sparse, False, True)
    for k, one in alone.replica.owned.items():
        assert alone.bound.v[k] == pytest.approx(float(one.v.norm()), rel=1e-4)
        assert alone.bound.v[k] < 0.9 * loose[k]
    before = list(alone.bound.u)
    alone.attempt(1.0, sparse, False, False)
    assert alone.bound.u == before  # a skip adds nothing
    alone.attempt(1.0, whole, True, False)
    assert alone.bound.v == [0.0, 0.0]
    assert min(alone.bound.u) > 0
    assert MassBound(using, 45, alone.bound.u, alone.bound.v).u == alone.bound.u


@pytest.mark.parametrize("exchange", ["dgc", "dense", "dense-bf16"])
def test_the_bound_holds_in_a_run(exchange: str) -> None:
    """Rows and plans as attempts make them. Virtual worker 0 has no samples, but in bf16 it adds up a slice of the sum,
    whose rounding lands in its v."""

    class Watching(Surroundings):
        keeps_log = True

        def enter(self, entry: Entry) -> None:
            rows[:] = [Row.unpack(row) for row in entry.rows]

    rows: list[Row] = []
    using = settings(3, exchange=exchange, optimizer=OptimizerConfig(momentum=0.9))
    group = Group(2, using, batches_of=lambda number, k: batches(number, k) if k else [])
    group.members[0] = Watching(group.members[0])
    replica = group.replicas[0]
    bound = MassBound(using, replica.layout.numel)
    for _ in range(8):
        weights_norm = float(replica.weights.norm())
        seen = group.step()
        bound.decided(rows, seen.plan, seen.committed, weights_norm)
        owned = {k: one for each in group.replicas for k, one in each.owned.items()}
        for k, one in owned.items():
            assert float(one.v.double().norm()) <= bound.v[k] < math.inf
        assert (float(owned[0].v.norm()) > 0) == (exchange == "dense-bf16")
        if exchange != "dgc":
            assert max(bound.v) < 0.05 * max(bound.u)
