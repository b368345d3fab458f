"""What the driver hands to its workers, and what both sides know of a run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch

from elastic_dgc import seeds
from elastic_dgc.data.order import Order
from elastic_dgc.data.source import MapSource, Source
from elastic_dgc.precision.autocast import Precision, choose
from elastic_dgc.precision.loss_scale import LossScale
from elastic_dgc.step.config import OptimizerConfig
from elastic_dgc.step.settings import StepSettings
from elastic_dgc.tasks.task import Task
from elastic_dgc.trainer.config import RunConfig

UNFIXED = {
    "name", "storage", "workers", "epochs", "require_compression", "cpus_per_worker", "gpus_per_worker",
    "loader_threads", "evaluate_every", "checkpoint_every_s", "keep", "digest_every", "heal", "max_skips",
    "max_restarts", "peer_silence_s", "step_deadline_s", "transport", "resource_wait_s", "resize_every_s", "audit",
    "report",
}  # fmt: skip
"""Fields of `RunConfig` that do not decide the result."""


@dataclass(frozen=True)
class Job:
    """Pickled to every worker. `run` is the run's id (hex of 16 bytes), `run_url` its storage, `device` cpu or cuda,
    `driver` names the command that started it, `secret` keeps strangers out."""

    task: Task
    config: RunConfig
    run: str
    driver: str
    run_url: str
    device: str
    secret: bytes
    identity: dict[str, Any]
    faults: str = "[]"


def optimizer_of(task: Task, config: RunConfig) -> OptimizerConfig:
    """The run's optimizer, or the task's where the run names none."""
    return config.optimizer or task.optimizer()


def training_source(task: Task, config: RunConfig) -> Source:
    """The task's training data as a `Source`."""
    return _source(task, task.train_data(), config.seed)


def test_source(task: Task, config: RunConfig) -> Source | None:
    """The task's evaluation data as a `Source`, or None."""
    data = task.test_data()
    return None if data is None else _source(task, data, config.seed)


def _source(task: Task, data: Any, seed: int) -> Source:
    if isinstance(data, Source):
        return data
    transform = task.transform if type(task).transform is not Task.transform else None
    return MapSource(data, collate=task.collate, transform=transform, seed=seed)


def make_order(source: Source, config: RunConfig) -> Order:
    """The order of the samples over the run."""
    return Order(source.group_sizes, config.virtual_workers, config.share, config.seed, window=config.shuffle_window)


def identity_of(task: Task, config: RunConfig, source: Source, device: str) -> dict[str, Any]:
    """Everything that decides the result, as JSON: what a resumed run must share, and what the default name is made
    of."""
    fixed = {k: v for k, v in config.model_dump(mode="json").items() if k not in UNFIXED}
    fixed |= {"optimizer": optimizer_of(task, config).model_dump(mode="json"), "device": device}
    fixed |= {"precision": choose(config.precision, device)}
    fixed |= {"data": source.fingerprint, "samples": len(source)}
    return {**json.loads(json.dumps(task.identity())), **fixed}


def default_name(task: Task, identity: dict[str, Any]) -> str:
    """'digits-1a2b3c4d': the task's name and 8 hex digits of the identity."""
    return f"{task.name}-{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]}"


def step_settings(task: Task, config: RunConfig, order: Order, identity: dict[str, Any]) -> StepSettings:
    """What the step needs to know. Its 16 bytes of identity cover torch's version too: other kernels, other bits."""
    text = json.dumps([identity, torch.__version__, config.epochs], sort_keys=True)
    precision: Precision = identity["precision"]
    return StepSettings(
        virtual_workers=config.virtual_workers,
        share=config.share,
        steps_per_epoch=order.steps_per_epoch,
        epochs=config.epochs,
        seed=config.seed,
        optimizer=optimizer_of(task, config),
        schedule=config.schedule,
        compression=config.compression,
        exchange=config.exchange,
        require_compression=config.require_compression,
        precision=precision,
        loss_scale=LossScale.of(precision, config.loss_scale),
        max_skips=config.max_skips,
        deadline_s=config.step_deadline_s,
        identity=hashlib.sha256(text.encode()).digest()[:16],
    )


def seed_model(config: RunConfig) -> None:
    """Seed all generators the way the initial weights are drawn."""
    seeds.seed_everything(config.seed, -1)
