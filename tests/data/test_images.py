"""Images: any mode and size becomes the wanted tensor, augmentation as torchvision's, damage named or left out."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as tv

from elastic_dgc.data.augment import Augment, box_numbers, random_box
from elastic_dgc.data.decode import decode
from elastic_dgc.data.images import ImageSource
from elastic_dgc.data.parquet import ParquetShards
from elastic_dgc.errors import DataError, UsageError

RNG = np.random.default_rng(0)


def encode(image: Image.Image, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    image.save(out, format=kind)
    return out.getvalue()


def rgb(height: int = 8, width: int = 8) -> Image.Image:
    return Image.fromarray(RNG.integers(0, 256, (height, width, 3), dtype=np.uint8))


def source(folder: Path, images: list[bytes | None], **kwargs: Any) -> ImageSource:
    table = pa.table({"image": pa.array(images, pa.binary()), "label": list(range(len(images)))})
    pq.write_table(table, folder / "train-0.parquet", row_group_size=4)
    return ImageSource(ParquetShards(str(folder), "train"), **kwargs)


def test_a_batch_is_uint8_channels_first_with_labels(tmp_path: Path) -> None:
    pictures = [rgb(8, 6) for _ in range(6)]
    images = source(tmp_path, [encode(p) for p in pictures])
    x, y = images.load(np.array([5, 1]), None)
    assert (x.dtype, y.dtype, x.shape, x.is_contiguous()) == (torch.uint8, torch.int64, (2, 3, 8, 6), True)
    assert torch.equal(x[0], torch.from_numpy(np.array(pictures[5])).permute(2, 0, 1))
    assert y.tolist() == [5, 1]
    assert images.sample_shape == (3, 8, 6)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_gray_or_rgb(mode: str, channels: int) -> None:
    gray = np.repeat(np.linspace(0, 255, 8).astype(np.uint8)[None], 8, axis=0)
    if mode == "I;16":
        image, kind = Image.fromarray(gray.astype(np.uint16) * 257), "PNG"
    else:
        image, kind = Image.fromarray(gray).convert("RGB").convert(mode), "TIFF" if mode == "CMYK" else "PNG"
    expected = np.asarray(image.convert("L")) if mode in ("1", "P") else gray
    if mode == "P":
        image.info["transparency"] = bytes(range(256))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels = np.asarray(decode(encode(image, kind), channels))
    assert pixels.shape == ((8, 8) if channels == 1 else (8, 8, 3))
    assert np.abs(pixels.reshape(8, 8, -1).astype(int) - expected[:, :, None]).max() <= (30 if mode == "P" else 1)


@pytest.mark.parametrize(("pad_mode", "numpys"), [("zero", "constant"), ("reflect", "reflect")])
def test_the_padded_crop_is_a_window_of_the_padded_image_and_flips_half(
    tmp_path: Path, pad_mode: str, numpys: Any
) -> None:
    pictures = [rgb() for _ in range(64)]
    augment = Augment(crop="pad", pad=2, pad_mode=pad_mode, flip=True)
    images = source(tmp_path, [encode(p) for p in pictures], augment=augment, seed=3)
    x, _ = images.load(np.arange(64), 1)
    found = []
    for out, picture in zip(x.numpy(), pictures, strict=True):
        wide = np.pad(np.asarray(picture).transpose(2, 0, 1), ((0, 0), (2, 2), (2, 2)), mode=numpys)
        windows = {
            (top, left, flip): wide[:, top : top + 8, left : left + 8][:, :, :: -1 if flip else 1]
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
        }
        (match,) = [key for key, window in windows.items() if np.array_equal(window, out)]
        found.append(match)
    tops, lefts, flips = zip(*found, strict=True)
    assert set(tops) == set(lefts) == set(range(5))
    assert 16 < sum(flips) < 48
    # by sample and epoch, whatever else is in the batch; evaluation is untouched
    assert torch.equal(images.load(np.array([9, 3]), 1)[0], x[[9, 3]])
    assert not torch.equal(images.load(np.arange(64), 2)[0], x)
    plain = np.stack([np.asarray(p).transpose(2, 0, 1) for p in pictures])
    assert (images.load(np.arange(64), None)[0].numpy() == plain).all()


@pytest.mark.parametrize(("height", "width"), [(40, 64), (64, 41), (30, 30), (33, 80)])
def test_evaluation_resizes_and_cuts_as_torchvision(tmp_path: Path, height: int, width: int) -> None:
    picture = rgb(height, width)
    images = source(tmp_path, [encode(picture)], augment=Augment(crop="resized", size=28))
    expected = tv.center_crop(tv.resize(picture, 32), [28, 28])
    assert (images.load(np.array([0]), None)[0][0].permute(1, 2, 0).numpy() == np.asarray(expected)).all()


def test_the_random_resized_crop_is_torchvisions_for_its_box(tmp_path: Path) -> None:
    pictures = [rgb(40, 64), rgb(20, 200), rgb(50, 20), rgb(30, 30)]
    images = source(tmp_path, [encode(p) for p in pictures], augment=Augment(crop="resized", size=24), seed=5)
    rows = np.arange(4)
    x, _ = images.load(rows, 7)
    for out, picture, numbers in zip(x, pictures, box_numbers(5, 7, rows), strict=True):
        left, top, right, bottom = random_box(*picture.size, numbers)
        expected = tv.resized_crop(picture, top, left, bottom - top, right - left, [24, 24])
        assert (out.permute(1, 2, 0).numpy() == np.asarray(expected)).all()


def test_random_boxes_have_the_area_and_ratio_of_the_paper() -> None:
    numbers = box_numbers(1, 2, np.arange(2000))
    boxes = np.array([random_box(640, 480, n) for n in numbers])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2] <= 640).all()
    assert (boxes[:, 3] <= 480).all()
    area = w * h / (640 * 480)
    assert 0.07 < area.min() < 0.1
    assert 0.95 < area.max() <= 1
    assert 0.74 < (w / h).min() < 0.78
    assert 1.29 < (w / h).max() < 1.35
    assert random_box(300, 10, np.full(22, 0.999)) == (143, 0, 156, 10)  # no try fits: the centre, ratio 4/3


def test_different_sizes_are_named_with_the_mend(tmp_path: Path) -> None:
    images = source(tmp_path, [encode(rgb(8, 8)), encode(rgb(8, 9))])
    with pytest.raises(DataError, match=r"row 0 is 8x8 and train-0.parquet, row 1 is 9x8.*--image-size"):
        images.load(np.array([1]), 0)
    sized = ImageSource(images.shards, augment=Augment(size=6))
    assert sized.load(np.array([0, 1]), 0)[0].shape == (2, 3, 6, 6)


def broken_images() -> list[bytes | None]:
    """Eight, of which 1 (truncated), 2 (no image), 5 (null), 6 (empty) are damaged."""
    good = [encode(rgb()) for _ in range(8)]
    return [good[0], encode(rgb(99, 99), "JPEG")[:900], b"not an image", good[3], good[4], None, b"", good[7]]


def test_a_corrupt_image_is_named_with_file_row_and_reason(tmp_path: Path) -> None:
    images = source(tmp_path, broken_images(), augment=Augment(size=8))
    for row, reason in ((1, "truncated"), (2, "no image that Pillow knows"), (5, "no bytes"), (6, "no bytes")):
        with pytest.raises(DataError, match=rf"train-0.parquet, row {row}: .*{reason}.*--skip-corrupt"):
            images.load(np.array([0, row]), 0)


def test_corrupt_images_are_left_out_and_a_training_batch_never_has_one(tmp_path: Path) -> None:
    images = source(tmp_path, broken_images(), augment=Augment(size=8, flip=True), skip_corrupt=True)
    x, y = images.load(np.arange(8), 0)
    assert y.tolist() == [0, 3, 4, 7]
    assert len(x) == 4
    assert set(images.corrupt) == {1, 2, 5, 6}
    assert images.left_out(np.arange(8), 0).tolist() == [1, 2, 5, 6]
    assert not images.left_alone
    for rows, epoch, left in (([0, 1], 0, []), ([0, 1], None, [0]), ([1, 2], 0, []), ([3], 0, [3])):
        batch, labels = images.load(np.array(rows), epoch)
        assert labels.tolist() == left
        assert batch.shape == (len(left), 3, 8, 8)
        assert images.left_out(np.array(rows), epoch).tolist() == [row for row in rows if row not in left]
    assert images.left_alone == {(0, 0)}


def test_a_split_of_corrupt_images_only_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="every image of the split 'train' is corrupt"):
        source(tmp_path, [b"x", b"y"], skip_corrupt=True).load(np.array([0]), 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"crop": "pad"}, "needs a border of at least 1"),
        ({"pad": 4}, "crop = 'none' with pad = 4"),
        ({"crop": "resized"}, "needs size"),
        ({"size": 0}, "at least 1 pixel"),
        ({"size": 32, "resize_eval": 16}, "not above it"),
        ({"crop": "pad", "pad": -1}, "pad = -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Augment(**values)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_pixels_that_are_no_numbers_are_damage_and_not_black(tmp_path: Path, value: float) -> None:
    pixels = np.full((8, 8), 7, dtype=np.float32)
    good = encode(Image.fromarray(pixels), "TIFF")
    pixels[2, 3:5] = value
    bad = encode(Image.fromarray(pixels), "TIFF")
    with pytest.raises(DataError, match=r"train-0.parquet, row 1: pixels are not finite \(NaN or infinite\): 2 of 64"):
        source(tmp_path, [good, bad], channels=1).load(np.array([0, 1]), None)
    skipping = source(tmp_path, [good, bad, good], channels=1, skip_corrupt=True)
    assert skipping.load(np.arange(3), None)[0].tolist() == [[[[7] * 8] * 8]] * 2
    assert list(skipping.corrupt) == [1]
