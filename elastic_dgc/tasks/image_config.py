"""The settings of image classification, apart from the task: the command line and its help need no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from elastic_dgc.config import Config
from elastic_dgc.data.augment_config import Augment
from elastic_dgc.models import names


class ImageConfig(Config):
    """What is trained on which images. Every field but `data` decides the result; of the data its fingerprint does."""

    model: str = Field("digits", description="digits, resnet20, resnet56, resnet110 or a torchvision model")
    data: str | None = Field(
        None, description="folder or URI of Parquet shards; 'digits': embedded, the default of model digits"
    )
    classes: int | None = Field(
        None,
        ge=1,
        description="number of classes; by default those of classes.json, else the highest label plus one, which is "
        "refused where most of the labels below it never occur",
    )
    channels: Literal[1, 3] | None = Field(None, description="1 gray, 3 RGB, images are converted; default: model's")
    crop: Literal["none", "pad", "resized"] = Field("none", description="random crop of training images")
    pad: int | None = Field(None, ge=1, description="border of crop 'pad' in pixels; 4 by default")
    flip: bool = Field(False, description="mirror half of the training images")
    image_size: int | None = Field(None, ge=1, description="side in pixels that images are brought to")
    resize_eval: int | None = Field(None, ge=1, description="shorter side before the centre crop of image_size")
    mean: tuple[float, ...] = Field((0.5,), description="of pixels in 0..1, one or one per channel")
    std: tuple[float, ...] = Field((0.25,), description="of pixels in 0..1, one or one per channel")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of the target spread over all classes")
    skip_corrupt: bool = Field(False, description="leave images out that cannot be decoded, and count them")
    init_from: str | None = Field(None, description="plain model file to start from: safetensors or a state dict")
    init_skip: tuple[str, ...] = Field((), description="glob patterns of tensors init_from leaves fresh")
    freeze: tuple[str, ...] = Field((), description="glob patterns of parameters that are not trained")

    @field_validator("std")
    @classmethod
    def _positive(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not one > 0 for one in value):
            raise ValueError("every standard deviation must be above 0")
        return value

    @model_validator(mode="after")
    def _fits(self) -> ImageConfig:
        names.check_name(self.model)
        names.check_channels(self.model, self.image_channels)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.image_channels):
                raise ValueError(
                    f"{name} has {len(values)} values: one is needed, or one for each of {self.image_channels} channels"
                )
        if self.pad is not None and self.crop != "pad":
            raise ValueError(f"pad = {self.pad} is for crop = 'pad', not for crop = {self.crop!r}")
        if self.init_skip and self.init_from is None:
            raise ValueError(f"init_skip = {self.init_skip} is for init_from, which is not given")
        self.augment()
        return self

    @property
    def image_channels(self) -> int:
        """Channels of the images that the model gets."""
        return self.channels or names.default_channels(self.model)

    def augment(self) -> Augment:
        """The part of these settings that the image source takes."""
        pad = (self.pad or 4) if self.crop == "pad" else 0
        return Augment(crop=self.crop, pad=pad, flip=self.flip, size=self.image_size, resize_eval=self.resize_eval)
