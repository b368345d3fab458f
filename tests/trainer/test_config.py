"""The settings of a run, and which of them a resumed run must share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.errors import UsageError
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig, make_torch_optimizer
from elastic_dgc.tasks.task import Task
from elastic_dgc.trainer import job as jobs
from elastic_dgc.trainer.config import RunConfig

BASE = RunConfig(virtual_workers=4, batch=16, device="cpu")
OTHER: dict[str, Any] = {
    "name": "other", "storage": "/other", "workers": "1:3", "virtual_workers": 8, "batch": 32, "accumulation": 2,
    "epochs": 11, "seed": 1, "exchange": "dense", "optimizer": OptimizerConfig(lr=0.3),
    "schedule": ScheduleConfig(kind="linear"), "compression": CompressionConfig(density=0.01),
    "require_compression": True, "device": "cuda", "residual_device": "cpu", "threads": 2, "cpus_per_worker": 2.0,
    "gpus_per_worker": 0.5, "shuffle_window": 5, "loader_threads": 2, "evaluate_every": 2, "evaluation_batch": 8,
    "checkpoint_every_s": 1.0, "keep": 3, "transport": "tree", "digest_every": 7, "max_skips": 4, "max_restarts": 6,
    "heal": "majority",
    "peer_silence_s": 1.0, "step_deadline_s": 1.0, "resource_wait_s": 1.0, "resize_every_s": 9.0, "audit": "/audit",
    "report": "/report", "precision": "bf16", "loss_scale": 2.0,
}  # fmt: skip
"""Another valid value for every field."""


class Line(Task):
    name = "line"

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch).square().mean()

    def train_data(self) -> list[Tensor]:
        return [torch.full((1,), float(i)) for i in range(64)]


def identity(config: RunConfig, task: Task | None = None) -> dict[str, Any]:
    task = task or Line()
    return jobs.identity_of(task, config, jobs.training_source(task, config), config.device)


@pytest.mark.parametrize("name", RunConfig.model_fields)
def test_every_field_is_known_to_decide_the_result_or_not_to(name: str) -> None:
    """A new field needs another value in OTHER, and a decision: fixed, or in UNFIXED."""
    base = BASE.with_values(precision="fp16") if name == "loss_scale" else BASE
    changed = base.with_values(**{name: OTHER[name]})
    assert getattr(changed, name) != getattr(base, name)
    assert (identity(changed) == identity(base)) == (name in jobs.UNFIXED)
    said = (RunConfig.model_fields[name].description or "").startswith("(fixed)")
    assert said == (name not in jobs.UNFIXED)


def test_unfixed_names_fields_that_are_there() -> None:
    assert set(RunConfig.model_fields) >= jobs.UNFIXED


@pytest.mark.parametrize("field", OptimizerConfig.model_fields)
def test_the_optimizer_is_fixed_wherever_it_comes_from(field: str) -> None:
    other = {"name": "adamw", "nesterov": True, "decay_vectors": False, "options": {"eps": 1e-6}}
    base = OptimizerConfig(name="adamw" if field == "options" else "sgd")
    changed = base.with_values(**{field: other.get(field, 0.5)})

    class Own(Line):
        def optimizer(self) -> OptimizerConfig:
            return changed

    by_run = identity(BASE.with_values(optimizer=changed))
    assert by_run != identity(BASE.with_values(optimizer=base))
    assert by_run["optimizer"] == identity(BASE, Own())["optimizer"]


def test_the_data_and_the_task_are_fixed() -> None:
    class More(Line):
        def train_data(self) -> list[Tensor]:
            return [*super().train_data(), torch.zeros(1)]

    assert len({str(identity(BASE, task)) for task in (Line(), More())}) == 2
    assert identity(BASE, More())["samples"] == 65


def test_the_default_name_follows_the_identity() -> None:
    name = jobs.default_name(Line(), identity(BASE))
    assert name == jobs.default_name(Line(), identity(BASE.with_values(epochs=99, workers=1)))
    assert name != jobs.default_name(Line(), identity(BASE.with_values(seed=1)))
    assert RunConfig(name=name).name == name
    assert name.startswith("line-")


@settings(deadline=None)
@given(st.integers(1, 32), st.integers(1, 4), st.integers(1, 600))
def test_a_batch_divides_or_is_answered_with_near_ones_that_do(k: int, accumulation: int, batch: int) -> None:
    fields = {"virtual_workers": k, "accumulation": accumulation, "workers": 1}
    if batch % (k * accumulation) == 0:
        config = RunConfig(batch=batch, **fields)
        assert config.micro_batch * accumulation == config.share
        assert config.share * k == batch
        return
    with pytest.raises(UsageError, match=f"batch = {batch} does not divide") as error:
        RunConfig(batch=batch, **fields)
    near = [int(word) for word in str(error.value).split("; near ")[1].split() if word.isdigit()]
    assert near
    assert all(RunConfig(batch=one, **fields) and abs(one - batch) < k * accumulation for one in near)


@settings(deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 12))
def test_workers_are_a_range_that_the_virtual_workers_can_fill(low: int, high: int, k: int) -> None:
    def make() -> RunConfig:
        return RunConfig(workers=f"{low}:{high}", virtual_workers=k, batch=k)

    if 1 <= low <= min(high, k):
        assert (make().min_workers, make().max_workers) == (low, high)
    else:
        with pytest.raises(UsageError, match=f"workers = '{low}:{high}'"):
            make()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "auto"])
def test_a_loss_scale_is_for_fp16(precision: str) -> None:
    assert RunConfig(precision="fp16", loss_scale=1024).loss_scale == 1024
    with pytest.raises(UsageError, match=rf"loss_scale = 1024 is for precision = 'fp16', not for '{precision}'"):
        RunConfig(precision=precision, loss_scale=1024)


def test_a_plain_number_of_workers_is_both_ends() -> None:
    config = RunConfig(workers=3)
    assert (config.workers, config.min_workers, config.max_workers) == ("3", 3, 3)


@pytest.mark.parametrize("name", ["sgd", "AdamW", "rmsprop", "radam"])
def test_optimizers_of_torch_are_known_by_name(name: str) -> None:
    assert OptimizerConfig(name=name).name == name.lower()


@pytest.mark.parametrize(
    "name", sorted(name.lower() for name, kind in vars(torch.optim).items()
                   if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name != "Optimizer")
)  # fmt: skip
def test_every_optimizer_of_torch_makes_a_step_or_is_refused_by_name(name: str) -> None:
    """On tensors of every number of dimensions, with weight decay."""
    parameters = [torch.ones(shape, requires_grad=True) for shape in ((), (3,), (3, 3), (2, 1, 2, 2))]
    if name in ("lbfgs", "muon", "rprop", "sparseadam"):
        with pytest.raises(UsageError, match=f"optimizer.name = '{name}' cannot be used: it "):
            OptimizerConfig(name=name, lr=0.01)
        return
    optimizer = make_torch_optimizer(OptimizerConfig(name=name, lr=0.01, weight_decay=0.1), parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(bool(torch.isfinite(p).all() and (p != 1).all()) for p in parameters)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "adamm"}, "unknown, did you mean 'adam"),
        ({"name": "sparseadam"}, "needs sparse gradients"),
        ({"name": "adamw", "options": {"epsilon": 1}}, "epsilon"),
        ({"name": "adamw", "options": {"betas": (2, 3)}}, "beta"),
        ({"options": {"eps": 1}}, "sgd takes none"),
    ],
)
def test_an_optimizer_that_cannot_be_is_found_when_it_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        OptimizerConfig(**fields)


def test_a_preset_brings_values_along_and_what_is_said_wins() -> None:
    largest = CompressionConfig(preset="dgc-max")
    assert (largest.values, largest.small_density) == ("int8", 1.0)
    assert CompressionConfig(preset="dgc-max", values="bf16").values == "bf16"
    assert CompressionConfig(density=0.01).with_values(preset="dgc-max", density=0.02).values == "int8"
    assert largest.with_values(density=0.01).values == "int8"
    with pytest.raises(UsageError, match="dgc-maxx"):
        CompressionConfig(preset="dgc-maxx")
