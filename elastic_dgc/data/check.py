"""Decodes every image of a data set before any training, to name all that are corrupt at once and not one in each run.

In threads, for Pillow decodes without Python's lock, and as a stream: what is in memory is a few row groups, or a few
files, however large the data are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from elastic_dgc.data.decode import decode
from elastic_dgc.data.digits import digits_path
from elastic_dgc.data.parquet import ParquetShards
from elastic_dgc.data.prepare import image_files
from elastic_dgc.errors import DataError, UsageError

PIECE = 64  # images that a thread takes at a time
CACHE_BYTES = 128 << 20
CHANNELS = 3  # what cannot be decoded to RGB cannot be decoded to gray

Piece = Callable[[], list[str]]


@dataclass(frozen=True)
class CheckedSplit:
    """One split of a data set, to be looked through once: `corrupt` yields a line with place and reason for each image
    that cannot be decoded, and for what cannot be read, in order."""

    name: str
    images: int
    corrupt: Iterator[str]


def check_data(data: str, threads: int) -> list[CheckedSplit]:
    """The splits train and test of a folder or URI of Parquet shards, or of a folder `split/class/*.jpg|png`.

    Nothing is decoded before `corrupt` of a split is iterated. The labels of shards are checked at once. Raises
    `UsageError`, `DataError`.
    """
    if threads < 1:
        raise UsageError(f"threads = {threads}: must be at least 1")
    if data == "digits":
        data = digits_path()
    if "://" not in data and (Path(data).expanduser() / "train").is_dir():
        folders = image_files(data)
        return [
            CheckedSplit(name, len(files), _in_threads(_of_files(files), threads)) for name, files in folders.items()
        ]
    splits = [ParquetShards(data, name, cache_bytes=CACHE_BYTES) for name in ("train", "test")]
    classes = splits[0].check_labels()
    splits[1].check_labels(classes)
    return [CheckedSplit(one.split, len(one), _in_threads(_of_shards(one), threads)) for one in splits]


def _of_files(files: Sequence[Path]) -> Iterator[Piece]:
    for first in range(0, len(files), PIECE):
        yield partial(_files, files[first : first + PIECE])


def _of_shards(shards: ParquetShards) -> Iterator[Piece]:
    first = 0
    for size in shards.group_sizes:
        end = first + int(size)
        for start in range(first, end, PIECE):
            yield partial(_rows, shards, range(start, min(start + PIECE, end)))
        first = end


def _files(paths: Sequence[Path]) -> list[str]:
    found = []
    for path in paths:
        try:
            found += _image(str(path), path.read_bytes())
        except OSError as error:
            found.append(f"{path}: it cannot be read ({error.strerror})")
    return found


def _rows(shards: ParquetShards, rows: Sequence[int]) -> list[str]:
    try:
        images, _ = shards.read(np.array(rows, dtype=np.int64))
    except DataError as error:  # of the whole row group: its other pieces will say the same
        return [str(error)]
    return [one for row, encoded in zip(rows, images, strict=True) for one in _image(shards.locate(row), encoded)]


def _image(place: str, encoded: bytes | None) -> list[str]:
    try:
        decode(encoded, CHANNELS)
    except DataError as error:
        return [f"{place}: {error}"]
    return []


def _in_threads(pieces: Iterable[Piece], threads: int) -> Iterator[str]:
    """What the pieces find, in their order, each once; at most two for each thread are under way."""
    waiting: deque[Future[list[str]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="check")
    last: str | None = None
    try:
        for piece in chain(pieces, repeat(None)):
            if piece is not None:
                waiting.append(pool.submit(piece))
                if len(waiting) <= 2 * threads:
                    continue
            if not waiting:
                return
            for line in waiting.popleft().result():
                if line != last:
                    yield line
                last = line
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
