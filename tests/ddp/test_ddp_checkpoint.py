"""A checkpoint holds every rank's own residual; another number of ranks takes over the sums."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp.ranks import DDP, net, run, run_ranks, same, weights

from elastic_dgc.ddp import DGC, DGCState, attach
from elastic_dgc.errors import ElasticDGCError, UsageError

pytestmark = pytest.mark.processes

CONFIG = DGC(density=0.02, warmup=(0.1,), warmup_steps=4, min_numel=100, values="bf16")


def prepared(config: DGC = CONFIG, **options: Any) -> tuple[DDP, torch.optim.Optimizer, Any, DGCState]:
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.05, "momentum": 0.9, "nesterov": True} | options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    return model, optimizer, schedule, attach(model, optimizer, config)


def save(folder: str) -> None:
    """Train, save, train on, and from the files do the same again: bitwise equal."""
    rank = dist.get_rank()
    model, optimizer, schedule, state = prepared()
    run(model, optimizer, range(6))
    schedule.step()
    checkpoint = {"optimizer": optimizer, "schedule": schedule, "dgc": state, "model": model.module}
    torch.save({name: one.state_dict() for name, one in checkpoint.items()}, f"{folder}/rank{rank}.pt")
    run(model, optimizer, range(6, 12))

    loaded = torch.load(f"{folder}/rank{rank}.pt", weights_only=True)
    again, optimizer, schedule, other = prepared()
    again.module.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    schedule.load_state_dict(loaded["schedule"])
    other.load_state_dict(loaded["dgc"])
    assert (other.steps, other.upload_bytes) == (6, loaded["dgc"]["upload_bytes"])
    run(again, optimizer, range(6, 12))
    assert torch.equal(weights(again), weights(model))
    assert same(other.state_dict()["v"], state.state_dict()["v"])
    assert same(other.state_dict()["u"], state.state_dict()["u"])
    assert other.upload_bytes == state.upload_bytes


def load(folder: str, old: int) -> list[Any]:
    """The states of `old` ranks at this number of them; returns what this rank got, and goes on."""
    files = [torch.load(f"{folder}/rank{rank}.pt", weights_only=True) for rank in range(old)]
    model, optimizer, _, state = prepared(CONFIG.with_values(density=0.05, masking=False))
    model.module.load_state_dict(files[0]["model"])
    state.load_state_dict([one["dgc"] for one in files])
    got = state.state_dict()
    run(model, optimizer, range(6, 9))
    assert state.steps == 9
    return [got["u"], got["v"]]


class Surprising(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise KeyError("a surprise")


def wrong(folder: str) -> None:
    """Loads that would be silently wrong are errors, and change nothing; of one rank alone, on all."""
    rank, world = dist.get_rank(), dist.get_world_size()
    files = [torch.load(f"{folder}/rank{one}.pt", weights_only=True)["dgc"] for one in range(world)]
    _, _, _, state = prepared()

    def changed(**changes: Any) -> dict[str, Any]:
        return {**copy.deepcopy(files[rank]), **changes}

    def without(part: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in part.items() if name != "head.bias"}

    def with_nan(part: dict[str, Any]) -> dict[str, Any]:
        return {name: torch.full_like(value, torch.nan) for name, value in part.items()}

    def lacks(name: str) -> dict[str, Any]:
        return {key: value for key, value in own.items() if key != name}

    own = files[rank]
    cases: list[tuple[Any, str]] = [
        (files[1 - rank], "is of rank [01] of 2, and here is rank [01] of 2"),
        (changed(world=3), "of 3, and here"),
        (files[:1], "each of them once"),
        ([files[0], files[0]], "each of them once"),
        ([files[0], {**files[1], "applied": 9}], "different steps"),
        ([], "empty list"),
        (changed(format=7), "in format 1"),
        (changed(v=without(own["v"])), "lacks v of head.bias"),
        (changed(u=with_nan(own["u"])), "not finite"),
        (changed(v={**own["v"], "head.bias": torch.zeros(5)}), r"v of head.bias has shape \(5,\) in the state"),
        (changed(momentum={}), "in the state it is none"),
        (changed(momentum={name: [0.8, True] for name in own["v"]}), r"in the state it is \(0.8, True\)"),
        (changed(optimizer="an optimizer with plain error feedback"), "here it is SGD"),
        (None, "got None: pass what state_dict"),
        ("dgc-0.pt", "got 'dgc-0.pt'"),
        ([own, None], r"it is None \(in entry 1 of 2\)"),
        ([files[1 - rank], lacks("dense_bytes")], r"'dense_bytes' is missing \(in entry 1 of 2\)"),
        (changed(skipped=True), "'skipped' is True, it must be a number"),
        (changed(u={**own["u"], "head.bias": [0.0]}), "'u' is .*, it must be .* tensors"),
        (changed(momentum=dict.fromkeys(own["v"], 0.9)), "'momentum' is .*nesterov"),
        *((lacks(name), f"not a state of DGC for DDP: '{name}' is missing: pass") for name in own),
    ]
    for given, words in cases:
        with pytest.raises(UsageError, match=words):
            state.load_state_dict(given)
        with pytest.raises(UsageError, match=words if rank == 1 else f"^rank 1: .*{words}"):
            state.load_state_dict(given if rank == 1 else own)
        assert state.steps == 0
        assert not state.residual.v.any()
    with pytest.raises(KeyError if rank == 1 else ElasticDGCError, match="a surprise"):  # in a way nobody thought of
        state.load_state_dict(Surprising(own) if rank == 1 else own)
    assert state.steps == 0
    state.load_state_dict(own)
    assert state.steps == 6


def totals(states: list[list[Any]]) -> list[dict[str, torch.Tensor]]:
    """Sums of u and of v over ranks, fp64."""
    return [{name: sum(one[part][name].double() for one in states) for name in states[0][part]} for part in (0, 1)]


def test_resuming_is_exact_at_the_same_number_of_ranks_and_keeps_the_sums_at_another(tmp_path: Path) -> None:
    run_ranks(3, save, str(tmp_path))
    files = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)["dgc"] for rank in range(3)]
    before = totals([[one["u"], one["v"]] for one in files])
    for world in (2, 4):
        after = totals(run_ranks(world, load, str(tmp_path), 3))
        for there, here in zip(before, after, strict=True):
            for name, total in there.items():
                torch.testing.assert_close(here[name], total, rtol=1e-5, atol=1e-7)
                assert total.any()


def test_a_state_that_is_not_ones_own(tmp_path: Path) -> None:
    run_ranks(2, save, str(tmp_path))
    run_ranks(2, wrong, str(tmp_path))
