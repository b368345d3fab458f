"""The long run's parts: overflows where the seed says, and bf16 computed in fp32."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elastic_dgc.models.registry import build
from elastic_dgc.seeds import seed_everything


def gradients(model: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    nn.functional.cross_entropy(logits.float(), labels).backward()
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


def test_emulated_bf16_is_autocasts_but_for_the_order_of_sums(script: Any) -> None:
    torch.manual_seed(0)
    model = build("resnet20", 10, 3, 8)
    x, labels = torch.randn(16, 3, 8, 8), torch.randint(0, 10, (16,))
    full = gradients(model, model(x), labels)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    real = gradients(model, logits, labels)
    with script.EmulatedBf16():
        mine = model(x)
    assert torch.equal(mine, mine.bfloat16().float())
    assert float((mine - logits).detach().norm() / logits.detach().float().norm()) < 0.01
    emulated = gradients(model, mine, labels)
    assert emulated.dtype == torch.float32
    error = float((real - full).norm() / full.norm())
    assert float((emulated - real).norm() / full.norm()) < 0.75 * error
    assert float((emulated - full).norm() / full.norm()) == pytest.approx(error, rel=0.4)


def test_overflows_are_where_the_seed_says_and_as_many_as_asked_for(script: Any) -> None:
    task = object.__new__(script.Cifar)
    task.config = SimpleNamespace(mean=(0.5,), std=(0.25,))
    task.emulated, task.overflows = False, 0.2
    batch = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))

    def places() -> list[tuple[int, int]]:
        found = []
        for attempt in range(100):
            for k in range(4):
                seed_everything(5, attempt, k, 0)
                loss, count = task.loss(model, batch)
                assert count == 2
                assert loss.isinf() or loss.isfinite()
                expected = torch.random.get_rng_state()
                seed_everything(5, attempt, k, 0)
                assert torch.equal(expected, torch.random.get_rng_state())
                found += [(attempt, k)] if loss.isinf() else []
        return found

    assert places() == places()
    assert 50 < len(places()) < 110
    task.overflows = 0.0
    assert places() == []


def test_figures_that_are_not_finite_are_an_error(script: Any) -> None:
    report = {
        "test_accuracy": 0.5, "steps": 4, "skipped_steps": 1, "upload_ratio": 3.0, "residual_norm": 1.0,
        "seconds": 60.0, "epochs": 1, "digest": "d", "evaluations": [{"accuracy": 0.5, "loss": 2.0}],
    }  # fmt: skip
    row = script.figures_of(report, 0)
    text = script.table({"dense": [row], "dgc": [{**row, "test_accuracy": 0.49}]})
    assert "-1.00" in text
    for broken in ({"residual_norm": math.nan}, {"evaluations": [{"accuracy": 0.1, "loss": math.inf}]}):
        with pytest.raises(ValueError, match="not finite"):
            script.figures_of({**report, **broken}, 0)
