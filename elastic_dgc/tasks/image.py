"""Image classification on Parquet shards, or on the embedded digits: the task of the command line and the recipes."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elastic_dgc.data.digits import digits_path
from elastic_dgc.data.images import ImageSource
from elastic_dgc.data.parquet import ParquetShards
from elastic_dgc.errors import UsageError
from elastic_dgc.models import export, registry
from elastic_dgc.tasks.image_config import ImageConfig
from elastic_dgc.tasks.task import Task

Batch = tuple[Tensor, Tensor]


class ImageClassification(Task):
    """Classification of images under cross entropy. A batch is (images uint8[n, C, H, W], labels int64[n]).

    `seed` is the run's and keys the augmentation. Files are opened on first use and never pickled. `train_data`,
    `model` and `identity` raise `UsageError` or `DataError` for what does not fit together: a driver that calls them
    before it starts workers reports it early.
    """

    def __init__(self, config: ImageConfig | None = None, seed: int = 0) -> None:
        self.config = config if config is not None else ImageConfig()
        self.seed = seed
        self.name = self.config.model
        self._warns = True  # copies on workers do not repeat what the driver said

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "seed": self.seed, "name": self.name, "_warns": False}

    def model(self) -> nn.Module:
        config, channels, (_, height, width) = self.config, self.config.image_channels, self._train.sample_shape
        square = height if height == width else None
        model = registry.build(config.model, self.classes, channels, square)
        registry.check_size(model, config.model, channels, height, width)
        if config.init_from is not None:
            state = export.parse_state(self._init_file, config.init_from)
            export.initialise(model, state, config.init_from, config.init_skip)
        self._check_freeze([name for name, _ in model.named_parameters()])
        return model

    @property
    def classes(self) -> int:
        """Classes of the model: the configured number, or what the training data says. Raises `DataError`."""
        return self._classes

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Mean cross entropy and the number of images, those that the source left out not counted."""
        images, labels = batch
        logits = model(self.normalise(images))
        return F.cross_entropy(logits, labels, label_smoothing=self.config.label_smoothing), len(labels)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, float]:
        """`accuracy`: number of correct images; `loss`: sum of the cross entropy, without label smoothing."""
        images, labels = batch
        if not len(labels):
            return {"accuracy": 0.0, "loss": 0.0}
        logits = model(self.normalise(images))
        correct = (logits.argmax(1) == labels).sum()
        return {"accuracy": float(correct.item()), "loss": F.cross_entropy(logits, labels, reduction="sum").item()}

    def normalise(self, images: Tensor) -> Tensor:
        """uint8[n, C, H, W] -> float32[n, C, H, W] on the same device: pixels in 0..1, minus mean, over std."""
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device=images.device).view(-1, 1, 1)
            for values in (self.config.mean, self.config.std)
        )
        return images.to(torch.float32).div_(255.0).sub_(mean).div_(std)

    def train_data(self) -> ImageSource:
        return self._train

    def test_data(self) -> ImageSource | None:
        return self._test

    def frozen(self, parameter_name: str) -> bool:
        return any(fnmatchcase(parameter_name, pattern) for pattern in self.config.freeze)

    def identity(self) -> dict[str, Any]:
        """As JSON: the settings as they take effect, with the training data's fingerprint and the SHA-256 of the
        `init_from` file in the place of paths. Without `skip_corrupt`: a run that a corrupt image stopped may be
        resumed with it, and nothing before that changes."""
        config = self.config
        return {
            **super().identity(),
            **config.model_dump(
                mode="json", include={"model", "mean", "std", "label_smoothing", "init_skip", "freeze"}
            ),
            "classes": self.classes,
            "channels": config.image_channels,
            "augment": config.augment().model_dump(mode="json"),
            "data": self._train.fingerprint,
            "init_from": None if config.init_from is None else export.digest_of(self._init_file),
        }

    @cached_property
    def _train(self) -> ImageSource:
        return self._source("train")

    @cached_property
    def _test(self) -> ImageSource:
        return self._source("test")

    @cached_property
    def _classes(self) -> int:
        classes = self._train.shards.check_labels(self.config.classes, self._warns)
        self._test.shards.check_labels(classes)
        return classes

    @cached_property
    def _init_file(self) -> bytes:
        assert self.config.init_from is not None
        return export.read_file(self.config.init_from)

    def _source(self, split: str) -> ImageSource:
        data = self.config.data
        if data is None and self.config.model != "digits":
            raise UsageError(
                f"data must be given for model = {self.config.model!r}: a folder or URI of Parquet shards, "
                "or 'digits' for the embedded ones"
            )
        return ImageSource(
            ParquetShards(digits_path() if data in (None, "digits") else data, split),
            channels=self.config.image_channels,
            augment=self.config.augment(),
            seed=self.seed,
            skip_corrupt=self.config.skip_corrupt,
        )

    def _check_freeze(self, names: list[str]) -> None:
        for pattern in self.config.freeze:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UsageError(
                    f"freeze = {pattern!r} matches no parameter of {self.config.model}; its parameters are "
                    f"{', '.join(names[:3])} ... {names[-1]}"
                )
        if all(self.frozen(name) for name in names):
            raise UsageError(
                f"freeze = {self.config.freeze} matches all {len(names)} parameters: none is left to train"
            )
