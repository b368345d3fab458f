"""The settings of crops, resizes and flips, apart from them: settings and help need neither numpy nor Pillow."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator, model_validator

from elastic_dgc.config import Config


class Augment(Config):
    """How training and evaluation images are made one size, and how training images are varied.

    `crop` 'pad' cuts the image's own size at random out of the image with a border of `pad` pixels (CIFAR: 4);
    'resized' cuts a random box of 8 to 100 % of the area and of ratio 3/4 to 4/3 and resizes it to `size`
    (ImageNet); 'none' keeps the image. Evaluation, and training unless the crop is 'resized', resizes the shorter
    side to `resize_eval` (default: `size`, or `size` / 0.875 where the crop is 'resized') and cuts the centre of
    `size`. Without `size` images keep theirs and must all have the same. `flip` mirrors half of the training images.
    """

    crop: Literal["none", "pad", "resized"] = "none"
    pad: int = 0
    pad_mode: Literal["zero", "reflect"] = "zero"
    flip: bool = False
    size: int | None = None
    resize_eval: int | None = None

    @field_validator("size", "resize_eval")
    @classmethod
    def _positive(cls, value: int | None) -> int | None:
        if value is not None and value < 1:
            raise ValueError("must be at least 1 pixel, or left out")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Augment:
        if (self.crop == "pad") != (self.pad > 0):
            raise ValueError(
                f"crop = '{self.crop}' with pad = {self.pad}: 'pad' needs a border of at least 1, others 0"
            )
        if self.crop == "resized" and self.size is None:
            raise ValueError("crop = 'resized' needs size (the side in pixels)")
        if self.resize_eval is not None and (self.size is None or self.resize_eval < self.size):
            raise ValueError(f"resize_eval = {self.resize_eval} needs a size that is not above it (size = {self.size})")
        return self

    @property
    def shorter_side(self) -> int | None:
        """What the shorter side is resized to before the centre crop."""
        if self.resize_eval is not None or self.size is None:
            return self.resize_eval
        return round(self.size / 0.875) if self.crop == "resized" else self.size
