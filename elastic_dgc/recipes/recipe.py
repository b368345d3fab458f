"""A recipe: what is trained and how, as one value that travels as JSON."""

from __future__ import annotations

from pydantic import Field

from elastic_dgc.config import Config
from elastic_dgc.tasks.image_config import ImageConfig
from elastic_dgc.trainer.config import RunConfig


class Recipe(Config):
    """The two groups of settings that a run of the command line has. Raises `UsageError` like every `Config`."""

    task: ImageConfig = Field(default_factory=ImageConfig)
    run: RunConfig = Field(default_factory=RunConfig)
