"""DGC's arithmetic: conservation, and torch's SGD as its special case."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from elastic_dgc.compression import dgc
from elastic_dgc.compression.accumulate import Momentum, Rule, Workspace, accumulate
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import unpack

module = importlib.import_module("elastic_dgc.compression.accumulate")

LAYOUT = Layout.of({"w": torch.zeros(30, 20), "b": torch.zeros(9), "z": torch.zeros(4, 25)}.items(), 10)


def step(rule: Rule, density: float, g: Tensor, w: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Workspace]:
    new_u, new_v, workspace = torch.empty_like(u), torch.empty_like(v), Workspace()
    accumulate(LAYOUT, [rule] * len(LAYOUT.segments), density, g, w, u, v, new_u, new_v, workspace)
    return new_u, new_v, workspace


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_per_coordinate_what_was_accumulated_is_sent_or_still_there(nesterov: bool, masking: bool, kind: Any) -> None:
    """R4 in fp64 through 200 random steps: v = sum of what entered v - sum of what was sent."""
    generator = torch.Generator().manual_seed(0)
    rule = Rule(1.0, 0.0, Momentum(0.9, nesterov))
    u, v = torch.zeros(LAYOUT.numel, dtype=torch.float64), torch.zeros(LAYOUT.numel, dtype=torch.float64)
    entered, sent = torch.zeros_like(v), torch.zeros_like(v)
    for _ in range(200):
        g = torch.randn(LAYOUT.numel, generator=generator, dtype=torch.float64)
        u, new_v, workspace = step(rule, 0.05, g, g, u, v)
        entered += u + (g if nesterov else 0)
        torch.testing.assert_close(new_v - v, u + (g if nesterov else 0))
        v = new_v
        said = unpack(LAYOUT, dgc.compress(LAYOUT, kind, 0.05, u, v, masking, workspace))
        dgc.add_message(sent, said.positions, said.values.double())
        entries = said.positions[LAYOUT.dense_numel :]
        unsent = said.values[LAYOUT.dense_numel :] == 0
        assert bool((u[entries][~unsent] == 0).all()) == masking
    assert sent.abs().sum() > 0
    torch.testing.assert_close(sent + v, entered, rtol=0, atol=1e-10)


@pytest.mark.parametrize("nesterov", [False, True, None])
def test_blocks_give_what_whole_tensors_give(nesterov: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 64, into other buffers and with the gradient in the memory of the new v: these two bit for bit, and
    the arithmetic that is written down (to the rounding of the last bit: a vector's end has another)."""
    monkeypatch.setattr(module, "BLOCK", 64)
    generator = torch.Generator().manual_seed(2)
    g, w, u, v = torch.randn(4, LAYOUT.numel, generator=generator)
    momentum = None if nesterov is None else Momentum(0.9, nesterov)
    plain, decayed = Rule(0.3, 0.0, momentum), Rule(0.3, 0.01, momentum)
    rules = [decayed if segment.name == "w" else plain for segment in LAYOUT.segments]
    scaled = g * 0.3
    for segment in LAYOUT.segments:
        if segment.name == "w":
            segment.of(scaled).add_(segment.of(w), alpha=0.01)
    expected_u = {None: u, True: (u + scaled) * 0.9, False: u * 0.9 + scaled}[nesterov]
    expected_v = {None: v + scaled, True: v + expected_u + scaled, False: v + expected_u}[nesterov]
    before = u.clone(), v.clone(), w.clone()
    found = []
    for alias in (False, True):
        new_u, new_v, workspace = torch.empty_like(u), g.clone() if alias else torch.empty_like(v), Workspace()
        us = (None, None) if nesterov is None else (u, new_u)
        accumulate(LAYOUT, rules, 0.001, new_v if alias else g, w, us[0], v, us[1], new_v, workspace)
        torch.testing.assert_close(new_v, expected_v, rtol=1e-6, atol=1e-6)
        if nesterov is not None:
            torch.testing.assert_close(new_u, expected_u, rtol=1e-6, atol=1e-6)
        assert torch.equal(dgc.select(LAYOUT, new_v, 0.001, workspace), dgc.select(LAYOUT, new_v, 0.001))
        found.append((new_u if nesterov is not None else u, new_v))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(before, (u, v, w), strict=True))


@pytest.mark.parametrize("nesterov", [False, True])
def test_density_one_without_masking_is_torch_sgd(nesterov: bool) -> None:
    """Everything sent, nothing masked, 4 virtual workers: the trajectory of torch's SGD on the mean gradient (fp64)."""
    generator = torch.Generator().manual_seed(1)
    n, k, decay, lr = LAYOUT.numel, 4, 0.01, 0.1
    weight = torch.randn(n, dtype=torch.float64, generator=generator)
    reference = weight.clone().requires_grad_()
    sgd = torch.optim.SGD([reference], lr=lr, momentum=0.9, nesterov=nesterov, weight_decay=decay)
    us = [torch.zeros(n, dtype=torch.float64) for _ in range(k)]
    for _ in range(50):
        gradients = torch.randn(k, n, dtype=torch.float64, generator=generator)
        reference.grad = gradients.mean(0)
        sgd.step()
        total = torch.zeros(n, dtype=torch.float64)
        for i in range(k):
            rule = Rule(1 / k, decay / k, Momentum(0.9, nesterov))
            us[i], v, _ = step(rule, 1.0, gradients[i], weight, us[i], torch.zeros(n, dtype=torch.float64))
            total += v
        weight = weight - lr * total
    torch.testing.assert_close(weight, reference.detach(), rtol=1e-12, atol=1e-12)


def test_zeros_are_not_sent_and_keep_their_momentum() -> None:
    v, u = torch.zeros(LAYOUT.numel), torch.ones(LAYOUT.numel)
    v[LAYOUT.segments[1].offset] = 3.0  # one entry of 'w'
    said = unpack(LAYOUT, dgc.compress(LAYOUT, "fp32", 0.1, u, v, masking=True))
    assert said.positions.tolist() == [*range(9), 9]
    assert (v == 0).all()
    assert u.sum() == LAYOUT.numel - 1


def test_every_tensor_sends_its_k_and_small_ones_have_their_own() -> None:
    v = torch.randn(LAYOUT.numel)
    names = {segment.name: segment for segment in LAYOUT.segments}
    positions = dgc.select(LAYOUT, v, 0.001)
    assert [names[n].offset <= int(p) < names[n].offset + names[n].numel for n, p in zip("wz", positions, strict=True)]
    assert LAYOUT.entries(0.1) == 60 + 10
    assert LAYOUT.dense_numel == 9
    own = Layout.of({"w": torch.zeros(30, 20), "b": torch.zeros(9), "z": torch.zeros(4, 25)}.items(), 10, 0.5, 6)
    assert [segment.count(0.001) for segment in own.segments] == [6, 1, 1]
    assert [segment.count(0.9) for segment in own.segments] == [8, 540, 90]
    assert own.dense_numel == 0


@pytest.mark.parametrize("density", [0.001, 0.01])
def test_scratch_is_a_twentieth_of_a_vector_at_most(density: float) -> None:
    """At the densities of the paper's last stages, on the tensors of a network of many millions."""
    layout = Layout.of({f"w{i}": torch.empty(512, 512, 3, 3, device="meta") for i in range(4)}.items(), 256)
    zeros, workspace = torch.zeros(layout.numel), Workspace()
    accumulate(layout, [Rule(1.0, 0.0, None)] * 4, density, zeros, zeros, None, zeros, None, zeros, workspace)
    assert workspace.bytes <= 0.05 * 4 * 4 * layout.numel


def test_the_clip_factor_is_for_gradients_that_already_contain_one_over_k() -> None:
    assert dgc.clip_factor(10.0, 1.0, 4) == pytest.approx(0.05, rel=1e-6)
    assert dgc.clip_factor(0.4, 1.0, 4) == 1.0


def test_nothing_waits_for_the_device_before_the_message_is_copied() -> None:
    """Tensors without data: whatever had to look at a value, or has a shape that depends on one, raises on them."""
    layout = Layout.of({"w": torch.empty(64, 1001, device="meta"), "b": torch.empty(9, device="meta")}.items(), 10)
    g, w, u, v = (torch.empty(layout.numel, device="meta") for _ in range(4))
    new_u, workspace = torch.empty_like(u), Workspace("meta")
    rules = [Rule(0.5, 0.1, Momentum(0.9))] * 2
    accumulate(layout, rules, 0.001, g, w, u, v, new_u, g, workspace)
    positions = dgc.select(layout, g, 0.001, workspace)
    assert positions.shape == (64,)
    dgc.add_message(w, positions, torch.empty(64, device="meta"))
    with pytest.raises(RuntimeError):
        torch.nonzero(g).cpu()
