"""Elastic data-parallel training with Deep Gradient Compression on Ray.

`from elastic_dgc import ElasticTrainer, Task` is what most users need. Names are loaded when they are first used, so
that `elastic_dgc.compression` alone needs neither Ray nor the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_dgc.compression.config import CompressionConfig
    from elastic_dgc.data.source import Source
    from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig
    from elastic_dgc.tasks.image import ImageClassification
    from elastic_dgc.tasks.image_config import ImageConfig
    from elastic_dgc.tasks.task import Task
    from elastic_dgc.trainer.config import RunConfig
    from elastic_dgc.trainer.elastic import ElasticTrainer, Result

_PLACES = {
    "CompressionConfig": "elastic_dgc.compression.config",
    "ElasticTrainer": "elastic_dgc.trainer.elastic",
    "ImageClassification": "elastic_dgc.tasks.image",
    "ImageConfig": "elastic_dgc.tasks.image_config",
    "OptimizerConfig": "elastic_dgc.step.config",
    "Result": "elastic_dgc.trainer.elastic",
    "RunConfig": "elastic_dgc.trainer.config",
    "ScheduleConfig": "elastic_dgc.step.config",
    "Source": "elastic_dgc.data.source",
    "Task": "elastic_dgc.tasks.task",
}

__all__ = [
    "CompressionConfig",
    "ElasticTrainer",
    "ImageClassification",
    "ImageConfig",
    "OptimizerConfig",
    "Result",
    "RunConfig",
    "ScheduleConfig",
    "Source",
    "Task",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'elastic_dgc' has no attribute '{name}'")
    return getattr(importlib.import_module(_PLACES[name]), name)
