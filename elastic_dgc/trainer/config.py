"""The settings of a run: everything but the task. Imports no Ray, so that recipes and tests are quick."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from elastic_dgc.compression.config import CompressionConfig, Exchange
from elastic_dgc.config import Config
from elastic_dgc.precision.loss_scale import is_power_of_two
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig


class RunConfig(Config):
    """How a task is trained. Fields marked (fixed) decide the result and must not change when a run is resumed."""

    name: str | None = Field(None, description="name of the run; the default is made from the fixed fields")
    storage: str = Field("~/elastic_dgc_runs", description="where runs are kept: a folder every node shares, or a URI")
    workers: str = Field("2", description="training processes: N, or MIN:MAX for elastic")
    virtual_workers: int = Field(4, ge=1, le=65536, description="(fixed) virtual workers, K")
    batch: int = Field(128, ge=1, description="(fixed) samples per step, over all virtual workers")
    accumulation: int = Field(1, ge=1, description="(fixed) micro-batches a virtual worker's share is cut into")
    epochs: int = Field(10, ge=1, description="passes over the data; may be raised when resuming")
    seed: int = Field(0, ge=0, lt=2**63, description="(fixed) seed of weights, order, augmentation and dropout")
    exchange: Exchange = Field("dgc", description="(fixed) dgc, or the baselines dense and dense-bf16")
    optimizer: OptimizerConfig | None = Field(None, description="(fixed) by default the task's")
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig, description="(fixed) learning rate over the run")
    compression: CompressionConfig = Field(default_factory=CompressionConfig, description="(fixed)")
    require_compression: bool = Field(False, description="stop when more is packed than density and format promise")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="(fixed) where the model computes")
    precision: Literal["fp32", "bf16", "fp16", "auto"] = Field(
        "fp32", description="(fixed) of forward and backward; parameters and residuals are fp32. auto: bf16 on GPUs"
    )
    loss_scale: float | None = Field(
        None, description="(fixed) of fp16 only: a power of two that stays; by default one that finds itself"
    )
    residual_device: Literal["auto", "cpu"] = Field(
        "auto", description="(fixed) where u and v live: with the model, or in the CPU's memory for GPUs short of it"
    )
    threads: int = Field(1, ge=1, description="(fixed) torch threads per worker; other counts round differently")
    cpus_per_worker: float = Field(1.0, ge=0, description="what Ray reserves for each worker")
    gpus_per_worker: float = Field(1.0, gt=0, description="with device cuda; fractions share a GPU")
    shuffle_window: int = Field(2048, ge=1, description="(fixed) rows that are shuffled together")
    loader_threads: int = Field(1, ge=0, description="threads that read and decode ahead, per worker")
    evaluate_every: int = Field(1, ge=1, description="epochs between evaluations; the last is always evaluated")
    evaluation_batch: int = Field(256, ge=1, description="(fixed) samples per batch of an evaluation")
    checkpoint_every_s: float = Field(60.0, ge=0, description="seconds between durable checkpoints; 0: every step")
    keep: int = Field(2, ge=1, description="durable checkpoints kept")
    transport: Literal["auto", "all-to-all", "tree", "collectives"] = Field(
        "auto", description="how messages travel: by workers, bytes and measured speed, or always one way"
    )
    digest_every: int = Field(200, ge=1, description="attempts between checks that all workers hold equal state")
    heal: Literal["never", "majority"] = Field(
        "never",
        description="what such a check does about a worker that differs: end the run, or overwrite its state "
        "with what more than half of the workers hold",
    )
    max_skips: int = Field(
        3, ge=1, description="skipped attempts in a row that stop the run; those that halve the loss scale do not count"
    )
    max_restarts: int = Field(5, ge=1, description="restarts in a row without a new checkpoint that stop the run")
    peer_silence_s: float = Field(30.0, gt=0, description="a worker that says nothing for so long is lost")
    step_deadline_s: float = Field(1800.0, gt=0, description="longest wait for another worker's part of a step")
    resource_wait_s: float = Field(1800.0, gt=0, description="longest wait for the cluster to place the minimum")
    resize_every_s: float = Field(30.0, ge=1, description="seconds between looks for room to grow (elastic)")
    audit: str | None = Field(None, description="file that lists the samples every step used")
    report: str | None = Field(None, description="JSON file with the run's figures")

    @field_validator("workers", mode="before")
    @classmethod
    def _workers(cls, value: Any) -> str:
        text = str(value)
        found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
        if not found:
            raise ValueError("must be a number such as 2, or a range such as 2:8")
        low, high = int(found[1]), int(found[2] or found[1])
        if low < 1:
            raise ValueError("at least 1 worker is needed")
        if high < low:
            raise ValueError(f"the minimum {low} is above the maximum {high}")
        return text

    @field_validator("name")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
            raise ValueError("must be letters, digits, '.', '_' and '-', at most 100, starting with a letter or digit")
        return value

    @field_validator("loss_scale")
    @classmethod
    def _loss_scale(cls, value: float | None) -> float | None:
        if value is not None and not is_power_of_two(value):
            raise ValueError("must be a power of two, such as 1024, so that scaling rounds nothing")
        return value

    @model_validator(mode="after")
    def _fits(self) -> RunConfig:
        if self.min_workers > self.virtual_workers:
            raise ValueError(
                f"workers = {self.workers!r}: the minimum {self.min_workers} is above the {self.virtual_workers} "
                f"virtual workers; raise virtual_workers or lower workers"
            )
        if self.loss_scale is not None and self.precision != "fp16":
            raise ValueError(
                f"loss_scale = {self.loss_scale:g} is for precision = 'fp16', not for {self.precision!r}, which needs "
                f"none: leave it out, or choose fp16"
            )
        share = self.virtual_workers * self.accumulation
        if self.batch % share:
            below, above = self.batch // share * share, -(-self.batch // share) * share
            raise ValueError(
                f"batch = {self.batch} does not divide into {self.virtual_workers} virtual workers x "
                f"{self.accumulation} micro-batches; near {f'are {below} and {above}' if below else f'is {above}'}"
            )
        return self

    @property
    def min_workers(self) -> int:
        return int(self.workers.split(":")[0])

    @property
    def max_workers(self) -> int:
        return int(self.workers.split(":")[-1])

    @property
    def micro_batch(self) -> int:
        """Samples of one forward pass."""
        return self.batch // (self.virtual_workers * self.accumulation)

    @property
    def share(self) -> int:
        """Samples of one virtual worker's step."""
        return self.batch // self.virtual_workers
