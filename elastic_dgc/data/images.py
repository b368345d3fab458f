"""Batches of images from Parquet shards: decoded, made one size, augmented; uint8, to be normalised on the device."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from elastic_dgc.data.augment import Augment, box_numbers, centre, crop_and_flip, random_box
from elastic_dgc.data.decode import decode
from elastic_dgc.data.parquet import ParquetShards
from elastic_dgc.data.source import Source
from elastic_dgc.errors import DataError, UsageError

Rows = npt.NDArray[np.int64]
Images = tuple[torch.Tensor, torch.Tensor]


class ImageSource(Source):
    """One split of an image data set. `load` returns (images uint8[n, C, H, W], labels int64[n]).

    A corrupt image raises `DataError` with file, row and Pillow's reason. With `skip_corrupt` it is left out of its
    batch instead and noted in `corrupt` (row id -> reason), the batch gets shorter; a training batch that would
    shrink to exactly one sample comes back empty (batch normalisation cannot use one), and that sample is counted in
    `left_alone`. This depends on the data alone, never on the number of workers.
    """

    def __init__(
        self,
        shards: ParquetShards,
        channels: int = 3,
        augment: Augment | None = None,
        seed: int = 0,
        skip_corrupt: bool = False,
    ) -> None:
        if channels not in (1, 3):
            raise UsageError(f"channels = {channels}: images have 1 (gray) or 3 (RGB)")
        self.shards = shards
        self.channels = channels
        self.augment = augment if augment is not None else Augment()
        self.seed = seed
        self.skip_corrupt = skip_corrupt
        self.group_sizes = shards.group_sizes
        self.fingerprint = shards.fingerprint
        self.corrupt: dict[int, str] = {}
        self.left_alone: set[tuple[int, int]] = set()  # (epoch, row id)
        self._lock = threading.Lock()
        self._first: tuple[int, tuple[int, int]] | None = None  # a row and its (width, height)

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image in a batch. Without `augment.size` the first image is read to know it."""
        if self.augment.size is not None:
            return self.channels, self.augment.size, self.augment.size
        _, (width, height) = self._first_image()
        return self.channels, height, width

    def load(self, rows: Rows, epoch: int | None) -> Images:
        encoded, labels = self.shards.read(rows)
        _, height, width = self.sample_shape
        boxes = None
        if epoch is not None and self.augment.crop == "resized":
            boxes = box_numbers(self.seed, epoch, rows)
        pixels: list[bytes] = []  # `tobytes` of an image takes a quarter of the time of `np.asarray`
        kept = np.ones(len(rows), dtype=bool)
        for i, row in enumerate(rows.tolist()):
            image = self._decode(encoded[i], row)
            if image is None:
                kept[i] = False
            else:
                pixels.append(self._to_size(image, row, None if boxes is None else boxes[i]).tobytes())
        if not kept.all():
            if epoch is not None and kept.sum() == 1:
                with self._lock:
                    self.left_alone.add((epoch, int(rows[kept][0])))
                kept[:] = False
                pixels = []
            labels, rows = labels[kept], rows[kept]
        stack = np.frombuffer(b"".join(pixels), dtype=np.uint8).reshape(len(rows), height, width, self.channels)
        batch = np.array(stack.transpose(0, 3, 1, 2), order="C")
        if epoch is not None:
            batch = crop_and_flip(batch, rows, self.augment, self.seed, epoch)
        return torch.from_numpy(batch), torch.from_numpy(labels)

    def left_out(self, rows: Rows, epoch: int | None) -> Rows:
        with self._lock:
            if not self.corrupt:
                return rows[:0]
            out = np.array([row in self.corrupt for row in rows.tolist()], dtype=bool)
        if epoch is not None and out.any() and (~out).sum() == 1:
            out[:] = True
        return rows[out]

    def corrupt_reason(self, row: int) -> str | None:
        with self._lock:
            return self.corrupt.get(row)

    def _decode(self, encoded: bytes | None, row: int) -> Image.Image | None:
        try:
            return decode(encoded, self.channels)
        except DataError as error:
            reason = f"{self.shards.locate(row)}: {error}"
            if not self.skip_corrupt:
                raise DataError(
                    f"{self.shards.uri}: corrupt image in {reason}; mend it, or leave such images out "
                    f"(--skip-corrupt); elastic-dgc check-data lists all"
                ) from error
            with self._lock:
                self.corrupt[row] = reason
            return None

    def _to_size(self, image: Image.Image, row: int, box: npt.NDArray[np.float64] | None) -> Image.Image:
        size, shorter = self.augment.size, self.augment.shorter_side
        if size is not None and shorter is not None:
            if box is None:
                return centre(image, shorter, size)
            cut = image.crop(random_box(*image.size, box))
            return cut.resize((size, size), Image.Resampling.BILINEAR)
        other, expected = self._first_image()
        if image.size != expected:
            places = [f"{self.shards.locate(r)} is {w}x{h}" for r, (w, h) in ((other, expected), (row, image.size))]
            raise DataError(
                f"{self.shards.uri}: images have different sizes ({' and '.join(places)}): "
                "give the size to bring them to (--image-size)"
            )
        return image

    def _first_image(self) -> tuple[int, tuple[int, int]]:
        """The first image that can be decoded: its row and its size."""
        if self._first is None:
            for row in range(len(self.shards)):
                encoded, _ = self.shards.read(np.array([row], dtype=np.int64))
                image = self._decode(encoded[0], row)
                if image is not None:
                    self._first = row, image.size
                    break
            else:
                raise DataError(f"{self.shards.uri}: every image of the split '{self.shards.split}' is corrupt")
        return self._first
