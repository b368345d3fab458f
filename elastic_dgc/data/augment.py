"""Crops, resizes and flips of a batch, drawn from (seed, epoch, row): a sample is augmented alike whoever loads it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from elastic_dgc.data.augment_config import Augment
from elastic_dgc.seeds import uniforms

Rows = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

_FLIP, _CROP, _BOX = 1, 2, 100  # streams of random numbers; _BOX and the numbers after it are tries of a random box
_TRIES = 10


def centre(image: Image.Image, shorter: int, size: int) -> Image.Image:
    """Resize the shorter side (bilinear), then cut the centre square, as torchvision's Resize and CenterCrop do."""
    width, height = image.size
    scaled = (shorter, int(shorter * height / width)) if width <= height else (int(shorter * width / height), shorter)
    if scaled != image.size:
        image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = round((scaled[0] - size) / 2.0), round((scaled[1] - size) / 2.0)
    if (left, top, *scaled) == (0, 0, size, size):
        return image
    return image.crop((left, top, left + size, top + size))


def box_numbers(seed: int, epoch: int, rows: Rows) -> npt.NDArray[np.float64]:
    """The numbers `random_box` needs for each row, float64[n, 2 * tries + 2] in [0, 1)."""
    return np.stack([uniforms(seed, epoch, rows, _BOX + i) for i in range(2 * _TRIES + 2)], axis=1)


def random_box(width: int, height: int, numbers: npt.NDArray[np.float64]) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of torchvision's RandomResizedCrop, from numbers in [0, 1) instead of a generator."""
    area = width * height
    low, high = math.log(3 / 4), math.log(4 / 3)
    draws = numbers.tolist()
    for area_draw, ratio_draw in zip(draws[:_TRIES], draws[_TRIES : 2 * _TRIES], strict=True):
        target = area * (0.08 + 0.92 * area_draw)
        ratio = math.exp(low + (high - low) * ratio_draw)
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(draws[-2] * (width - w + 1)), int(draws[-1] * (height - h + 1))
            return left, top, left + w, top + h
    w, h = width, height
    if width / height < 3 / 4:
        h = round(width / (3 / 4))
    elif width / height > 4 / 3:
        w = round(height * (4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def crop_and_flip(batch: Pixels, rows: Rows, augment: Augment, seed: int, epoch: int) -> Pixels:
    """The padded random crop and the flip of a stack of images, uint8[n, C, H, W]; a new array, the input is kept.

    The numbers are drawn for the whole batch at once. The pixels are copied image by image through strided views:
    six times faster than fancy indexing at 32x32.
    """
    n, _, height, width = batch.shape
    if n == 0 or not (augment.flip or augment.crop == "pad"):
        return batch
    pad = augment.pad
    if pad:
        if augment.pad_mode == "reflect":
            wide = np.pad(batch, ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="reflect")
        else:  # what np.pad does, at a third of the time
            wide = np.zeros((n, batch.shape[1], height + 2 * pad, width + 2 * pad), dtype=np.uint8)
            wide[:, :, pad:-pad, pad:-pad] = batch
        tops = (uniforms(seed, epoch, rows, _CROP) * (2 * pad + 1)).astype(int).tolist()
        lefts = (uniforms(seed, epoch, rows, _CROP + 1) * (2 * pad + 1)).astype(int).tolist()
    else:
        wide, tops, lefts = batch, [0] * n, [0] * n
    flips = (uniforms(seed, epoch, rows, _FLIP) < 0.5).tolist() if augment.flip else [False] * n
    out = np.empty_like(batch)
    for i, (top, left, flip) in enumerate(zip(tops, lefts, flips, strict=True)):
        view = wide[i, :, top : top + height, left : left + width]
        out[i] = view[:, :, ::-1] if flip else view
    return out
