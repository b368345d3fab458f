"""What goes wrong is said on every rank alike, and loses nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp.ranks import DDP, listen, loss_of, net, replicas_are_equal, run, run_ranks, same, train, weights

from elastic_dgc.ddp import DGC, DGCState, attach
from elastic_dgc.errors import Disagreement, Diverged, UsageError

pytestmark = pytest.mark.processes

CONFIG = DGC(density=0.05, warmup=(1.0,), warmup_steps=3, min_numel=100)


def prepared(config: DGC = CONFIG, **options: Any) -> tuple[DDP, torch.optim.Optimizer, DGCState]:
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01, **options)
    return model, optimizer, attach(model, optimizer, config)


def two_passes() -> None:
    model, optimizer, _ = prepared()
    run(model, optimizer, range(2))
    loss_of(model, 2, dist.get_rank()).backward()
    with pytest.raises(UsageError, match=r"without optimizer.step.*no_sync"):
        loss_of(model, 3, dist.get_rank()).backward()


def one_rank_only() -> None:
    """An error of one rank's own is an error of all, at once."""
    model, optimizer, _ = prepared()
    run(model, optimizer, range(2))
    if dist.get_rank() == 1:
        optimizer.param_groups[0]["momentum"] = 0.5
    words = "momentum = 0.5 in param group 0" if dist.get_rank() == 1 else "rank 1: momentum = 0.5 in param group 0"
    with pytest.raises(UsageError, match=words):
        loss_of(model, 2, dist.get_rank()).backward()


def disagreement() -> None:
    """Settings that differ are named when ranks meet in attach, with nothing changed; later ones at the vote."""
    other = dist.get_rank() == 1
    scaler = torch.amp.GradScaler("cpu")
    cases: list[tuple[dict[str, Any], dict[str, Any], Any, str]] = [
        ({"density": 0.06}, {}, None, r"density is 0.06 on rank 1 and 0.05 on rank 0"),
        ({"values": "bf16", "clip": 1.0}, {}, None, r"(values is bf16|clip is 1.0) on rank 1 and \w+ on rank 0"),
        ({}, {"nesterov": True}, None, "^nesterov of param group 0 is True on rank 1 and False on rank 0: all ranks"),
        ({}, {"weight_decay": 0.0}, None, "^weight decay of param group 0 is 0.0 on rank 1 and 0.01 on rank 0"),
        ({}, {}, scaler, "^scaler is a GradScaler on rank 1 and none on rank 0"),
    ]
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for changes, options, used, words in cases:
        mine = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01} | (options if other else {})
        optimizer = torch.optim.SGD(model.parameters(), **mine)
        with pytest.raises(Disagreement, match=words):
            attach(model, optimizer, CONFIG.with_values(**changes) if other else CONFIG, scaler=used if other else None)
        assert (optimizer.param_groups[0]["momentum"], "dgc_momentum" in optimizer.param_groups[0]) == (0.9, False)
    two = [{"params": list(model.module.head.parameters())}, {"params": list(model.module.conv.parameters())}]
    rest = [*model.module.norm.parameters(), *model.module.hidden.parameters()]
    groups = [*two, {"params": rest}] if other else [{"params": list(model.parameters())}]
    with pytest.raises(Disagreement, match=r"^the number of param groups is 3 on rank 1 and 1 on rank 0"):
        attach(model, torch.optim.SGD(groups, lr=0.05, momentum=0.9), CONFIG)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    state = attach(model, optimizer, CONFIG)
    run(model, optimizer, range(2))
    optimizer.param_groups[0]["dgc_momentum"] = 0.8 if other else 0.9
    with pytest.raises(Disagreement, match=r"^momentum of param group 0 is 0\.8 on rank 1 and 0.9 on rank 0"):
        loss_of(model, 2, dist.get_rank()).backward()
    assert state.steps == 2


def unfrozen() -> None:
    """A parameter that DDP does not reduce is not trained unnoticed; not even where one rank alone unfreezes it."""
    inner = net()
    inner.hidden.requires_grad_(False)
    model = DDP(inner)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05, momentum=0.9)
    attach(model, optimizer, CONFIG)
    run(model, optimizer, range(2))
    inner.hidden.bias.requires_grad_(dist.get_rank() == 1)
    words = "^hidden.bias was unfrozen after attach" if dist.get_rank() == 1 else "^rank 1: hidden.bias was unfrozen"
    with pytest.raises(UsageError, match=words):
        loss_of(model, 2, dist.get_rank()).backward()


def thrown_away() -> None:
    """zero_grad between the pass and the step: a warning after a compressed one, and the error of the next pass only
    where no step came."""
    lines = listen()
    model, optimizer, _ = prepared()
    run(model, optimizer, range(4))
    for _ in range(2):
        loss_of(model, 4, dist.get_rank()).backward()
        optimizer.zero_grad()
        optimizer.step()
    assert len(lines) == 1
    assert "zero_grad?" in lines[0]
    loss_of(model, 5, dist.get_rank()).backward()
    optimizer.zero_grad()
    with pytest.raises(UsageError, match=r"without optimizer\.step"):
        loss_of(model, 6, dist.get_rank()).backward()


def poisoned(model: DDP, step: int) -> torch.Tensor:
    """The loss, whose gradient is NaN in one parameter of rank 1."""
    loss = loss_of(model, step, dist.get_rank())
    return loss + model.module.head.bias.sum() * (torch.nan if dist.get_rank() == 1 else 0.0)


def not_finite() -> None:
    """A step that some rank's NaN spoils changes nothing on any, which rank 0 and the guilty one tell; three in a row
    end training."""
    lines = listen()
    model, optimizer, state = prepared()
    run(model, optimizer, range(5))
    before, kept = weights(model), state.state_dict()
    for _ in range(2):
        optimizer.zero_grad()
        poisoned(model, 5).backward()
        optimizer.step()
    after = state.state_dict()
    assert torch.equal(weights(model), before)
    assert same(kept["u"], after["u"])
    assert same(kept["v"], after["v"])
    assert (state.steps, state.skipped) == (5, 2)
    assert len(lines) == 2
    for number, line in enumerate(lines, start=1):
        assert f"step {5 + number} (applied: 5, skipped: {number}) is skipped" in line
        assert line.endswith("rank 1: gradient of head.bias (4 of 4 values not finite)")
    run(model, optimizer, range(5, 7))  # a good step begins the count anew
    assert (state.steps, replicas_are_equal(model)) == (7, True)
    with pytest.raises(Diverged, match=r"3 steps in a row .* rank 1: gradient of head.bias"):  # noqa: PT012
        for _ in range(3):
            optimizer.zero_grad()
            poisoned(model, 8).backward()
            optimizer.step()


def not_finite_under_adam() -> None:
    """A zero gradient would move its weights too, so it is an error at once."""
    model = DDP(net())
    attach(model, torch.optim.AdamW(model.parameters()), CONFIG)
    with pytest.raises(Diverged, match=r"rank 1: gradient of head\.bias"):
        poisoned(model, 0).backward()


def alone() -> None:
    """Nobody waits long for a rank that does not attach, or fails in it; the group is good for another try."""
    rank = dist.get_rank()
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for late in (False, True):
        dist.barrier()
        if late == (rank == 1):
            words = (
                "rank [02]: rank 1 of 3 did not come" if late else "^rank 1 of 3 did not come to attach within 0.5 s"
            )
            with pytest.raises(UsageError, match=words):
                attach(model, optimizer, CONFIG.with_values(deadline_s=0.5))
    words = "^scaler is 3" if rank == 1 else "^rank 1: scaler is 3"
    with pytest.raises(UsageError, match=words):
        attach(model, optimizer, CONFIG, scaler=3 if rank == 1 else None)
    assert optimizer.param_groups[0]["momentum"] == 0.9
    state = attach(model, optimizer, CONFIG)
    run(model, optimizer, range(2))
    own = state.state_dict()
    state.config = CONFIG.with_values(deadline_s=0.1)
    for late in (False, True):
        dist.barrier()
        if late == (rank != 0):
            with pytest.raises(UsageError, match=r"ranks 1, 2 of 3 did not come to load_state_dict within 0.1 s"):
                state.load_state_dict(own)
    state.config = CONFIG
    state.load_state_dict(own)
    run(model, optimizer, range(2, 4))
    assert (state.steps, replicas_are_equal(model)) == (4, True)


class Broken(RuntimeError):
    pass


def failed_exchange() -> None:
    """What was accumulated = applied + what is in v, after an exchange that fails in a whole and in a sparse step."""
    for steps, failing in ((2, "all_reduce"), (5, "all_gather")):
        inner = net()
        model = DDP(inner)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # no momentum: what enters v is the gradient
        state = attach(model, optimizer, CONFIG)
        run(model, optimizer, range(steps))
        before = state.state_dict()["v"]
        local = net()
        local.load_state_dict(inner.state_dict())
        loss_of(local, steps, dist.get_rank()).backward()
        real, calls = getattr(dist, failing), []

        def fail(*args: Any, failing: str = failing, real: Any = real, calls: list[int] = calls, **kwargs: Any) -> Any:
            calls.append(1)
            if failing == "all_gather" and len(calls) == 1:
                return real(*args, **kwargs)  # the vote goes through
            raise Broken("the network is gone")

        setattr(dist, failing, fail)
        optimizer.zero_grad()
        with pytest.raises(Broken, match="network"):
            loss_of(model, steps, dist.get_rank()).backward()
        setattr(dist, failing, real)
        after = state.state_dict()
        assert (after["applied"], state.pending) == (steps, False)
        for name, parameter in local.named_parameters():
            assert torch.equal(after["v"][name], before[name] + parameter.grad / 2)
        assert state.residual.v.any()


def clipped() -> None:
    """Clipping after the exchange is noticed, once; it is not an error."""
    lines = listen()
    model, optimizer, state = prepared(CONFIG.with_values(warmup=()))
    for _ in train(model, optimizer, range(3)):
        assert not lines
    for step in range(3, 6):
        optimizer.zero_grad()
        loss_of(model, step, dist.get_rank()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    assert state.steps == 6
    assert len(lines) == 1
    assert "DGC(clip=...)" in lines[0]


@pytest.mark.parametrize(
    "scenario",
    [
        two_passes,
        one_rank_only,
        disagreement,
        unfrozen,
        thrown_away,
        not_finite,
        not_finite_under_adam,
        failed_exchange,
        clipped,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_on_two_ranks(scenario: Any) -> None:
    run_ranks(2, scenario)


def test_a_rank_that_does_not_come_is_named() -> None:
    run_ranks(3, alone)
