"""DGC's arithmetic: conservation, and torch's SGD as its special case."""

from __future__ import annotations

import pytest
import torch

from elastic_dgc.compression import dgc
from elastic_dgc.compression.layout import Layout

LAYOUT = Layout.of({"w": torch.zeros(30, 20), "b": torch.zeros(9), "z": torch.zeros(4, 25)}.items(), 10)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("masking", [False, True])
def test_per_coordinate_what_was_accumulated_is_sent_or_still_there(nesterov: bool, masking: bool) -> None:
    """R4 in fp64 through 300 random steps: v = sum of what entered v - sum of what was sent."""
    generator = torch.Generator().manual_seed(0)
    momentum = dgc.Momentum(0.9, nesterov)
    u, v = torch.zeros(LAYOUT.numel, dtype=torch.float64), torch.zeros(LAYOUT.numel, dtype=torch.float64)
    entered, sent = torch.zeros_like(v), torch.zeros_like(v)
    for _ in range(300):
        g = torch.randn(LAYOUT.numel, generator=generator, dtype=torch.float64)
        new_u, new_v = torch.empty_like(u), torch.empty_like(v)
        dgc.accumulate(g, u, v, momentum, new_u, new_v)
        entered += new_u + (g if nesterov else 0)
        positions = dgc.select(LAYOUT, new_v, 0.05)
        values = new_v[positions].to(torch.bfloat16)
        dgc.clear(new_v, positions, values)
        dgc.add_message(sent, positions, values)
        if masking:
            dgc.mask(new_u, positions)
            assert (new_u[positions] == 0).all()
        u, v = new_u, new_v
    assert sent.abs().sum() > 0
    torch.testing.assert_close(sent + v, entered, rtol=0, atol=1e-11)


@pytest.mark.parametrize("nesterov", [False, True])
def test_density_one_without_masking_is_torch_sgd(nesterov: bool) -> None:
    """Everything sent, nothing masked, 4 virtual workers: the trajectory of torch's SGD on the mean gradient (fp64)."""
    generator = torch.Generator().manual_seed(1)
    n, k, decay, lr = 40, 4, 0.01, 0.1
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
            u, v = torch.empty_like(us[i]), torch.empty_like(us[i])
            local = gradients[i] / k + decay * weight / k
            dgc.accumulate(local, us[i], torch.zeros_like(v), dgc.Momentum(0.9, nesterov), u, v)
            total, us[i] = total + v, u
        weight = weight - lr * total
    torch.testing.assert_close(weight, reference.detach(), rtol=1e-12, atol=1e-12)


def test_all_zero_gradients_select_nothing() -> None:
    assert dgc.select(LAYOUT, torch.zeros(LAYOUT.numel), 0.1).numel() == 0


def test_every_sparse_tensor_sends_at_least_one_entry_and_at_most_its_k() -> None:
    positions = dgc.select(LAYOUT, torch.randn(LAYOUT.numel), 0.001)
    assert [LAYOUT.name_at(int(p)) for p in positions] == ["w", "z"]
    assert LAYOUT.entries(0.1) == 60 + 10
    assert LAYOUT.dense_numel == 9


def test_the_clip_factor_is_for_gradients_that_already_contain_one_over_k() -> None:
    assert dgc.clip_factor(10.0, 1.0, 4) == pytest.approx(0.05, rel=1e-6)
    assert dgc.clip_factor(0.4, 1.0, 4) == 1.0
