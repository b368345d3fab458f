"""Converts an image folder or a CIFAR archive to the Parquet shards that training reads.

Rows are written in seeded random order: training shuffles row groups and within windows, so a file in class order
would stay in it.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from elastic_dgc.data.cifar_archive import is_cifar, read_cifar
from elastic_dgc.data.decode import decode
from elastic_dgc.errors import DataError, StorageError, UsageError
from elastic_dgc.seeds import permutation

SUFFIXES = (".jpg", ".jpeg", ".png")
_TEST_NAMES = ("test", "val")
_OURS = re.compile(r"(train|test)-\d{5}\.parquet|classes\.json")
_SCHEMA = pa.schema([("image", pa.binary()), ("label", pa.int64())])


SkipCorrupt = Callable[[Path, str], None]


class Split(Protocol):
    """Samples of one split, encoded when asked for."""

    def __len__(self) -> int: ...
    def sample(self, index: int) -> tuple[bytes, int] | None:
        """The encoded image and its label; None for a corrupt one that is to be left out."""


@dataclass
class _Folder:
    files: list[tuple[Path, int]]
    size: int | None
    skip: SkipCorrupt | None

    def __len__(self) -> int:
        return len(self.files)

    def sample(self, index: int) -> tuple[bytes, int] | None:
        path, label = self.files[index]
        encoded = path.read_bytes()
        try:
            image = decode(encoded, 3)
        except DataError as error:
            if self.skip is None:
                raise DataError(
                    f"{path} is corrupt ({error}): mend or remove it, or leave such images out (--skip-corrupt); "
                    f"elastic-dgc check-data lists all"
                ) from error
            self.skip(path, str(error))
            return None
        return (encoded if self.size is None else _shrunk(encoded, image, self.size)), label


@dataclass
class _Arrays:
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)

    def sample(self, index: int) -> tuple[bytes, int]:
        out = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(self.images[index])).save(out, format="PNG")
        return out.getvalue(), int(self.labels[index])


def prepare(
    source: str,
    target: str,
    *,
    seed: int = 0,
    rows_per_group: int = 500,
    rows_per_file: int = 10000,
    size: int | None = None,
    force: bool = False,
    skip_corrupt: SkipCorrupt | None = None,
) -> dict[str, int]:
    """Write `train-*.parquet`, `test-*.parquet` and `classes.json` into the local folder `target`.

    `source` is a folder `split/class/*.jpg|png` with the splits train and test (or val), or the CIFAR-10 or -100
    python archive, packed or not. Original file bytes are kept, unless `size` is given and the shorter side is
    longer than that; CIFAR becomes PNG. The folder appears whole or not at all; one that is not empty is replaced
    with `force`, and only if everything in it was written by this function. Every file of a folder is decoded once, to
    find corrupt ones here and not in training: they are an error, or left out where `skip_corrupt(path, reason)` is
    given, which is called for each. Returns the rows of each split.
    Raises `UsageError`, `DataError`, `StorageError`.
    """
    for name, value in (("rows_per_group", rows_per_group), ("rows_per_file", rows_per_file), ("size", size)):
        if value is not None and value < 1:
            raise UsageError(f"{name} = {value}: must be at least 1")
    src, dst = Path(source).expanduser().absolute(), Path(target).expanduser().absolute()
    _check_target(dst, force)
    if not src.exists():
        raise DataError(f"{src}: no such file or folder")
    splits: dict[str, Split]
    if is_cifar(src):
        if size is not None:
            raise UsageError(f"size = {size}: CIFAR images have one size, leave it out")
        cifar = read_cifar(src)
        classes = cifar.classes
        splits = {name: _Arrays(*arrays) for name, arrays in cifar.splits.items()}
    else:
        classes, folders = _scan(src)
        splits = {name: _Folder(files, size, skip_corrupt) for name, files in folders.items()}
    rows: dict[str, int] = {}
    with _whole_folder(dst) as work:
        for name, split in splits.items():
            order = permutation(len(split), seed, zlib.crc32(name.encode()))
            rows[name] = _write(split, order, work / name, rows_per_group, rows_per_file)
            if not rows[name]:
                raise DataError(f"{src}: every image of the split '{name}' is corrupt")
        (work / "classes.json").write_text(json.dumps(classes) + "\n")
    return rows


def image_files(source: str) -> dict[str, list[Path]]:
    """The image files of a folder `split/class/*.jpg|png`, by split (train, test). Raises `DataError`."""
    _, splits = _scan(Path(source).expanduser().absolute())
    return {name: [path for path, _ in files] for name, files in splits.items()}


def _scan(src: Path) -> tuple[list[str], dict[str, list[tuple[Path, int]]]]:
    """The classes, sorted by name, and the files with their labels of the splits."""
    if not src.is_dir():
        raise DataError(f"{src} is neither a folder of images nor a CIFAR python archive")
    test = next((name for name in _TEST_NAMES if (src / name).is_dir()), None)
    if not (src / "train").is_dir() or test is None:
        there = ", ".join(sorted(entry.name for entry in src.iterdir())[:20]) or "nothing"
        raise DataError(
            f"{src} must have the folders train and test (or val), each with a folder per class; there is {there}"
        )
    classes = sorted(entry.name for entry in (src / "train").iterdir() if entry.is_dir())
    if not classes:
        raise DataError(f"{src / 'train'} has no folder per class")
    splits = {}
    for split, folder in (("train", src / "train"), ("test", src / test)):
        unknown = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name not in classes)
        if unknown:
            raise DataError(f"{folder} has classes that train does not have: {', '.join(unknown[:10])}")
        files = [
            (path, label)
            for label, name in enumerate(classes)
            if (folder / name).is_dir()
            for path in sorted((folder / name).iterdir())
            if path.suffix.lower() in SUFFIXES and path.is_file()
        ]
        if not files:
            raise DataError(f"{folder} has no images ({', '.join(SUFFIXES)}) in its class folders")
        splits[split] = files
    return classes, splits


def _shrunk(encoded: bytes, image: Image.Image, size: int) -> bytes:
    """The image with its shorter side brought down to `size`, in its own format; smaller ones keep their bytes."""
    scale = size / min(image.size)
    if scale >= 1:
        return encoded
    side = [max(size, round(length * scale)) for length in image.size]
    out = io.BytesIO()
    small = image.resize((side[0], side[1]), Image.Resampling.BILINEAR, reducing_gap=None)
    if encoded.startswith(b"\x89PNG"):
        small.save(out, format="PNG")
    else:
        small.save(out, format="JPEG", quality=95)
    return out.getvalue()


def _write(split: Split, order: Sequence[int] | npt.NDArray[np.int64], stem: Path, group: int, per_file: int) -> int:
    """Returns the rows written: fewer than there are where corrupt ones are left out."""
    samples = (sample for sample in (split.sample(int(index)) for index in order) if sample is not None)
    written = number = 0
    while part := list(islice(samples, min(group, per_file))):
        path = stem.with_name(f"{stem.name}-{number:05d}.parquet")
        # The images are compressed already.
        with pq.ParquetWriter(path, _SCHEMA, compression="none", use_dictionary=False) as writer:
            in_file = 0
            while part:
                images, labels = zip(*part, strict=True)
                writer.write_table(pa.table([images, labels], schema=_SCHEMA), row_group_size=group)
                in_file += len(part)
                part = list(islice(samples, min(group, per_file - in_file)))
        written, number = written + in_file, number + 1
    return written


def _check_target(dst: Path, force: bool) -> None:
    if not dst.exists() or (dst.is_dir() and not any(dst.iterdir())):
        return
    if not dst.is_dir():
        raise UsageError(f"{dst} is a file: name a folder")
    if not force:
        raise UsageError(f"{dst} is not empty: name another folder, or replace it with --force")
    strangers = sorted(entry.name for entry in dst.iterdir() if not (entry.is_file() and _OURS.fullmatch(entry.name)))
    if strangers:
        raise UsageError(f"{dst} is not replaced, it also holds {', '.join(strangers[:5])}: remove that first")


@contextmanager
def _whole_folder(dst: Path) -> Iterator[Path]:
    """A working folder beside `dst` that takes its place when all is written, and is removed on any error."""
    mark = uuid.uuid4().hex[:8]
    work, old = dst.with_name(f".{dst.name}.{mark}.tmp"), dst.with_name(f".{dst.name}.{mark}.old")
    try:
        work.mkdir(parents=True)
        yield work
        if dst.exists():
            os.rename(dst, old)
        os.rename(work, dst)
    except OSError as error:
        if old.exists() and not dst.exists():
            os.rename(old, dst)
        raise StorageError(f"{dst} cannot be written ({error}): nothing was changed") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
