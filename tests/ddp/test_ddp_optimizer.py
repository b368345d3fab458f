"""What is taken over from the optimizer acts once, and whoever would make it act twice is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp.ranks import DDP, listen, loss_of, net, replicas_are_equal, run, run_ranks, train, weights

from elastic_dgc.ddp import DGC, attach
from elastic_dgc.errors import UsageError

pytestmark = pytest.mark.processes

CONFIG = DGC(density=0.05, warmup=(), min_numel=100)


def prepared(**options: Any) -> tuple[DDP, torch.optim.Optimizer]:
    model = DDP(net())
    return model, torch.optim.SGD(model.parameters(), **{"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01} | options)


def twice() -> None:
    """Every way by which momentum or weight decay comes back into the optimizer."""

    def one_cycle(optimizer: Any) -> None:
        torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)

    def foreign_state(optimizer: Any) -> None:
        optimizer.load_state_dict(prepared()[1].state_dict())

    def foreign_zeros(optimizer: Any) -> None:
        optimizer.load_state_dict(prepared(momentum=0, weight_decay=0)[1].state_dict())

    def group(optimizer: Any) -> None:
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})

    def decay(optimizer: Any) -> None:
        optimizer.param_groups[0]["weight_decay"] = 0.1

    cases = [
        (one_cycle, "momentum = 0.95 in param group 0 would be applied twice.*cycle_momentum=False"),
        (foreign_state, "param group 0 .*load.* before attach"),
        (foreign_zeros, "param group 0 .*'dgc_momentum' is gone"),
        (group, "param group 1 .*added before it"),
        (decay, "weight_decay = 0.1 in param group 0"),
    ]
    for change, words in cases:
        model, optimizer = prepared()
        attach(model, optimizer, CONFIG)
        run(model, optimizer, range(2))
        before = weights(model)
        change(optimizer)
        optimizer.zero_grad()
        with pytest.raises(UsageError, match=words):
            loss_of(model, 2, dist.get_rank()).backward()
        with pytest.raises(UsageError, match=words):
            optimizer.step()
        assert torch.equal(weights(model), before)


def allowed() -> None:
    """Schedules of lr, a state that was saved under DGC, loaded after or before attach."""
    model, optimizer = prepared()
    attach(model, optimizer, CONFIG)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10, cycle_momentum=False)
    for _ in train(model, optimizer, range(3)):
        schedule.step()
    saved = optimizer.state_dict()
    ends = []
    for first in (True, False):
        model, optimizer = prepared(momentum=0.5)
        if first:
            optimizer.load_state_dict(saved)
        state = attach(model, optimizer, CONFIG)
        if not first:
            optimizer.load_state_dict(saved)
        run(model, optimizer, range(4))
        assert optimizer.param_groups[0]["dgc_momentum"] == 0.9
        assert state.taken.momentum_of()["head.weight"] == (0.9, False)
        ends.append(weights(model))
    assert torch.equal(*ends)


def adamw() -> None:
    """Plain error feedback: one value a parameter, AdamW's own settings untouched. At density 1 it is dense AdamW; at
    5 % it learns more slowly, at a learning rate that is not too high for the larger, rarer entries."""
    ends, losses = [], []
    for density in (None, 1.0, 0.05):
        model = DDP(net())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, weight_decay=0.1)
        if density is not None:
            lines = listen()
            state = attach(model, optimizer, CONFIG.with_values(density=density))
            assert len(lines) == (dist.get_rank() == 0 and density == 0.05)
            assert all("AdamW" in line and "use SGD with momentum" in line for line in lines)
            assert state.residual.u is None
            assert optimizer.param_groups[0]["weight_decay"] == 0.1
        run(model, optimizer, range(120))
        ends.append(weights(model))
        losses.append(sum(loss_of(model, 900 + i, 0).item() for i in range(5)) / 5)
        assert replicas_are_equal(model)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-5)
    untrained = sum(loss_of(net(), 900 + i, 0).item() for i in range(5)) / 5
    assert losses[2] < 0.75 * untrained, losses
    assert losses[2] < losses[0] + 0.2 * untrained, losses


class Wrapped:
    """As Accelerate's and Lightning's wrappers have it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


class OwnStep(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        super().step(closure)


def refused() -> None:
    """What attach answers to a wrong request: one line, nothing changed."""
    inner = net()
    model = DDP(inner)

    def sgd(parameters: Any = None, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters or inner.parameters(), lr=0.1, momentum=0.9, **options)

    def on(made: Any, optimizer: Any = None, config: Any = CONFIG, **options: Any) -> str:
        used = optimizer or sgd(list(made.parameters()))
        before = [dict(group) for group in used.param_groups] if hasattr(used, "param_groups") else []
        with pytest.raises(UsageError) as caught:
            attach(made, used, config, **options)
        assert "\n" not in str(caught.value)
        assert not before or all("dgc_momentum" not in group for group in used.param_groups)
        return str(caught.value)

    assert "Net; attach needs torch.nn.parallel.DistributedDataParallel" in on(inner)
    hooked = DDP(net())
    hooked.register_comm_hook(None, lambda state, bucket: None)
    assert "has a communication hook already" in on(hooked)
    builtin = DDP(net())
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    assert "has a communication hook already" in on(builtin)
    assert "conv.bias is float64" in on(DDP(net().double()))
    embedding = torch.nn.Sequential(torch.nn.Embedding(5, 3, sparse=True), torch.nn.Linear(3, 3))
    assert "use sparse=False" in on(DDP(embedding), sgd(list(embedding.parameters())))
    assert "LBFGS cannot apply" in on(model, torch.optim.LBFGS(inner.parameters()))
    assert "does not have parameter conv.bias (7 in all)" in on(model, sgd([inner.head.weight]))
    stranger = torch.nn.Parameter(torch.zeros(3))
    assert "shape (3,)" in on(model, sgd([*inner.parameters(), stranger]))
    assert "scaler is True; attach needs the torch.amp.GradScaler" in on(model, scaler=True)
    assert "scaler is the class GradScaler itself" in on(model, scaler=torch.amp.GradScaler)
    assert "config is the class DGC itself; attach needs a DGC: make one" in on(model, config=DGC)
    assert "config is an object of class dict; attach needs a DGC" in on(model, config={"density": 0.1})
    assert "optimizer is 3; attach needs one of torch.optim" in on(model, 3)
    optimizer = sgd()
    attach(model, Wrapped(optimizer), CONFIG)
    assert optimizer.param_groups[0]["dgc_momentum"] == 0.9
    with pytest.raises(UsageError, match=r"has a communication hook already \(dgc_hook\)"):
        attach(model, optimizer, CONFIG)
    with pytest.raises(UsageError, match="attached already"):
        attach(DDP(inner), optimizer, CONFIG)
    own = OwnStep(inner.parameters(), lr=0.1, momentum=0.9)
    assert attach(DDP(inner), own, CONFIG).residual.u is None  # nobody knows what its step does
    assert own.param_groups[0]["momentum"] == 0.9


def test_momentum_that_would_be_applied_twice() -> None:
    run_ranks(2, twice)


def test_schedules_and_states_that_are_fine() -> None:
    run_ranks(2, allowed)


def test_adamw() -> None:
    run_ranks(2, adamw)


def test_what_attach_refuses() -> None:
    run_ranks(1, refused)


def test_a_warm_up_needs_its_steps() -> None:
    with pytest.raises(UsageError, match="needs warmup_steps"):
        DGC()
    with pytest.raises(UsageError, match="as warmup_steps"):
        DGC(warmup_steps=5, warmup_epochs=2)
    assert DGC(preset="dgc-max", warmup_steps=500).values == "int8"
    assert DGC(warmup_steps=500).with_values(density=0.01).density_after(2000) == 0.01
