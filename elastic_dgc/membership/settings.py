"""What the coordinator must be told of a run."""

from __future__ import annotations

from pydantic import Field, model_validator

from elastic_dgc.config import Config


class CoordinatorSettings(Config):
    """`virtual_workers`: K. Below `min_workers` the run pauses; beyond `max_workers` those who come wait outside the
    view as spares. `exact`: no inexact copy is taken before `Limits.exact_wait_s` has passed. `strict`: none is taken
    at all, the run stops instead."""

    virtual_workers: int = Field(ge=1)
    min_workers: int = Field(default=1, ge=1)
    max_workers: int = Field(ge=1)
    exact: bool = True
    strict: bool = False

    @model_validator(mode="after")
    def _fit(self) -> CoordinatorSettings:
        if self.min_workers > self.max_workers:
            raise ValueError(f"min_workers = {self.min_workers} must not be above max_workers = {self.max_workers}")
        if self.strict and not self.exact:
            raise ValueError("strict = True takes exact copies only: set exact = True")
        return self
