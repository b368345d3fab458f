"""Images and labels in Parquet shards, on any filesystem pyarrow knows.

A data set is a folder of `<split>-*.parquet` with the columns `image` (the encoded bytes, or Hugging Face's struct
that holds them under `bytes`) and `label` (an integer), and optionally `classes.json`. Row groups are the unit of
reading; the most recent ones are kept in memory.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from elastic_dgc.data.cache import ReadCache
from elastic_dgc.errors import DataError
from elastic_dgc.log import logger

Rows = npt.NDArray[np.int64]

GAPS_SHOWN = 5


def resolve(uri: str) -> tuple[fs.FileSystem, str]:
    """The filesystem and the path on it that a local path or a URI (`s3://`, `gs://`, `file://`, ...) names."""
    if "://" not in uri:
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(uri))
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, ImportError) as error:
        raise DataError(
            f"{uri}: no filesystem for it ({_first_line(error)}); give a folder or an s3://, gs:// URI"
        ) from None
    return filesystem, path


@dataclass(frozen=True)
class _File:
    path: str
    name: str
    size_bytes: int
    metadata: pq.FileMetaData
    columns: tuple[str, str]  # as read: 'image' or 'image.bytes', and 'label'


@dataclass(frozen=True)
class _Group:
    file: int  # index of its file
    number: int  # in its file
    first_row: int  # in its file
    rows: int


class ParquetShards:
    """One split of a data set in Parquet. Row ids count through the files in the order of their names.

    `cache_bytes` bounds the row groups kept in memory. It should hold the windows in use (a window of 2048 images
    for each hosted virtual worker); a warning says if it does not. Safe to use from several threads. Reads footers
    when made; raises `DataError` that names folder, file, column or row.
    """

    def __init__(
        self,
        uri: str,
        split: str,
        *,
        cache_bytes: int = 1 << 30,
        filesystem: fs.FileSystem | None = None,
    ) -> None:
        self.uri = uri
        self.split = split
        self._fs, self._folder = (filesystem, uri) if filesystem is not None else resolve(uri)
        self._files = [self._open(info) for info in self._list()]
        self._groups: list[_Group] = []
        for index, file in enumerate(self._files):
            first = 0
            for number in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(number).num_rows
                if rows:
                    self._groups.append(_Group(index, number, first, rows))
                first += rows
        if not self._groups:
            raise DataError(f"{uri}: the split '{split}' has {len(self._files)} files and no rows")
        self.group_sizes = np.array([group.rows for group in self._groups], dtype=np.int64)
        self._ends = np.cumsum(self.group_sizes)
        self.class_names = self._read_classes()
        self.fingerprint = self._fingerprint()
        self._cache = ReadCache(self._read_group, cache_bytes)
        self._rows_served = 0
        self._warned = False

    def __len__(self) -> int:
        return int(self._ends[-1])

    def locate(self, row: int) -> str:
        """Where a row is, for messages: 'train-00001.parquet, row 17' (from 0, within the file)."""
        at = int(np.searchsorted(self._ends, row, side="right"))
        group = self._groups[at]
        within = group.first_row + row - int(self._ends[at] - group.rows)
        return f"{self._files[group.file].name}, row {within}"

    def read(self, rows: Rows) -> tuple[list[bytes | None], Rows]:
        """The encoded images and the labels, int64[n], of the given row ids, in their order. An image may be null."""
        images: list[bytes | None] = [None] * len(rows)
        labels = np.empty(len(rows), dtype=np.int64)
        groups = np.searchsorted(self._ends, rows, side="right")
        for index in np.unique(groups).tolist():
            column, group_labels = self._cache.get(index)
            chosen = np.flatnonzero(groups == index)
            within = rows[chosen] - (self._ends[index] - self._groups[index].rows)
            labels[chosen] = group_labels[within]
            for place, row in zip(chosen.tolist(), within.tolist(), strict=True):
                images[place] = column[row].as_py()
        self._rows_served += len(rows)  # approximate when threads race; it only serves the warning
        self._warn_once_if_thrashing()
        return images, labels

    def check_labels(self, classes: int | None = None, warn: bool = True) -> int:
        """Read all labels (no images) and make sure that they are 0..classes-1. Returns the number of classes: the
        given one, else that of `classes.json`, else the highest label plus one; then labels that never occur are
        warned of, unless not `warn`, and more of them than of those that do are an error. Raises `DataError` with the
        place."""
        known = classes if classes is not None else len(self.class_names) if self.class_names else None
        first_at: dict[int, str] = {}  # by label
        for file in self._files:
            try:
                with self._fs.open_input_file(file.path) as stream:
                    labels = pq.ParquetFile(stream, metadata=file.metadata).read(["label"], use_threads=False)["label"]
            except (OSError, pa.ArrowException) as error:
                raise DataError(f"{self.uri}: {file.name} cannot be read ({_first_line(error)})") from error
            if labels.null_count:
                row = pc.index(pc.is_null(labels), pa.scalar(True)).as_py()
                raise DataError(f"{self.uri}: {file.name}, row {row} has no label")
            if not len(labels):
                continue
            values = labels.to_numpy()
            bad = np.flatnonzero((values < 0) | (values >= known) if known is not None else values < 0)
            if len(bad):
                allowed = f"0..{known - 1}" if known is not None else "0 and up"
                count = f" ({len(bad)} such rows in this file)" if len(bad) > 1 else ""
                raise DataError(
                    f"{self.uri}: {file.name}, row {bad[0]} has the label {values[bad[0]]}, "
                    f"labels must be {allowed}{count}: mend the data or classes.json, or raise the number of classes"
                )
            if known is None:
                for label, row in zip(*np.unique(values, return_index=True), strict=True):
                    first_at.setdefault(int(label), f"{file.name}, row {row}")
        return known if known is not None else self._classes_by(first_at, warn)

    def _classes_by(self, first_at: dict[int, str], warn: bool) -> int:
        """The number of classes where only the labels tell it. A single typo makes it as large as it likes."""
        labels = sorted(first_at)
        classes = labels[-1] + 1
        unseen = classes - len(labels)
        if not unseen:
            return classes
        gaps = [(before + 1, label - 1) for before, label in pairwise([-1, *labels]) if before + 1 < label]
        # What stands behind the widest gap, the first of them, is the odd one.
        odd = max(gaps, key=lambda gap: gap[1] - gap[0])[1] + 1
        shown = [f"{low}" if low == high else f"{low} to {high}" for low, high in gaps]
        never = f"{', '.join(shown[:GAPS_SHOWN])}{' ...' if len(shown) > GAPS_SHOWN else ''}"
        text = (
            f"{self.uri}: {first_at[odd]} has the label {odd}, but in the split '{self.split}' {unseen} "
            f"of the labels from 0 to {labels[-1]} never {'occurs' if unseen == 1 else 'occur'} ({never})"
        )
        if unseen > len(labels):
            raise DataError(
                f"{text}: mend the label; or number the classes from 0 without gaps; or, if it is right, say so by "
                f"classes = {classes} or a classes.json"
            )
        if warn:
            logger().warning(
                f"{text}: the model gets {classes} classes all the same; classes = {classes} says that it is right"
            )
        return classes

    def _list(self) -> list[fs.FileInfo]:
        try:
            kind = self._fs.get_file_info(self._folder).type
            if kind == fs.FileType.File:
                raise DataError(f"{self.uri} is a file: give the folder that holds {self.split}-*.parquet")
            found = self._fs.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.uri} cannot be listed ({_first_line(error)})") from error
        pattern = f"{self.split}-*.parquet"
        files = sorted(
            (f for f in found if f.is_file and fnmatch.fnmatchcase(f.base_name, pattern)), key=lambda f: f.base_name
        )
        if files:
            return files
        if not found and kind == fs.FileType.NotFound:
            raise DataError(f"{self.uri}: no such folder")
        names = sorted(f.base_name for f in found)
        there = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        raise DataError(
            f"{self.uri}: no {pattern}; there is {there or 'nothing'}. Images are converted by jobs/prepare_images.py"
        )

    def _open(self, info: fs.FileInfo) -> _File:
        where = f"{self.uri}: {info.base_name}"
        try:
            with self._fs.open_input_file(info.path) as stream:
                opened = pq.ParquetFile(stream)
                metadata, schema = opened.metadata, opened.schema_arrow
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{where} is not a readable Parquet file ({_first_line(error)})") from error
        for name in ("image", "label"):
            if schema.names.count(name) != 1:
                raise DataError(f"{where} has no column '{name}', its columns are {', '.join(schema.names) or 'none'}")
        kind, column = schema.field("image").type, "image"
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind, column = kind.field("bytes").type, "image.bytes"
        if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise DataError(f"{where}: the column 'image' is {kind}, it must be binary (encoded images)")
        if not pa.types.is_integer(schema.field("label").type):
            raise DataError(f"{where}: the column 'label' is {schema.field('label').type}, it must be an integer")
        return _File(info.path, info.base_name, info.size, metadata, (column, "label"))

    def _read_classes(self) -> list[str] | None:
        path = f"{self._folder.rstrip('/')}/classes.json"
        if self._fs.get_file_info(path).type != fs.FileType.File:
            return None
        with self._fs.open_input_file(path) as stream:
            text = stream.read()
        try:
            names = json.loads(text)
        except ValueError as error:
            raise DataError(f"{self.uri}: classes.json is not JSON ({error})") from None
        names = names.get("classes") if isinstance(names, dict) else names
        if not isinstance(names, list) or not names:
            raise DataError(f"{self.uri}: classes.json must be a list of names, or an object with the list 'classes'")
        return [str(name) for name in names]

    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for file in self._files:
            meta = file.metadata
            groups = [
                (meta.row_group(i).num_rows, meta.row_group(i).total_byte_size) for i in range(meta.num_row_groups)
            ]
            kinds = [f"{c.path} {c.physical_type}" for c in map(meta.schema.column, range(len(meta.schema)))]
            digest.update(repr((file.name, meta.num_rows, file.size_bytes, groups, kinds)).encode())
        return digest.hexdigest()

    def _read_group(self, index: int) -> tuple[tuple[pa.Array, Rows], int]:
        """Images and labels of a row group, and their size in bytes."""
        group = self._groups[index]
        file = self._files[group.file]
        try:
            with self._fs.open_input_file(file.path) as stream:
                parquet = pq.ParquetFile(stream, metadata=file.metadata, pre_buffer=True)
                table = parquet.read_row_group(group.number, columns=list(file.columns), use_threads=False)
        except (OSError, pa.ArrowException) as error:
            place = f"{file.name}, rows {group.first_row} to {group.first_row + group.rows - 1}"
            raise DataError(f"{self.uri}: {place} cannot be read ({_first_line(error)})") from error
        images, labels = table["image"], table["label"]
        if pa.types.is_struct(images.type):
            images = pc.struct_field(images, "bytes")
        # Where one chunk was too small, offsets of 32 bits are too.
        chunks = images.chunks if images.num_chunks == 1 else images.cast(pa.large_binary()).chunks
        images = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        if labels.null_count:
            row = group.first_row + pc.index(pc.is_null(labels), pa.scalar(True)).as_py()
            raise DataError(f"{self.uri}: {file.name}, row {row} has no label")
        return (images, labels.to_numpy().astype(np.int64)), table.nbytes

    def _warn_once_if_thrashing(self) -> None:
        """Of what is read, nearly everything should be served before it is evicted: windows are read sequentially."""
        rows_read = self._cache.reads * (len(self) / len(self._groups))
        if self._warned or self._cache.reads < 2 * len(self._cache) + 64 or rows_read < 16 * self._rows_served:
            return
        self._warned = True
        logger().warning(
            f"{self.uri}: row groups are read again and again, the cache of {self._cache.budget_bytes >> 20} MiB holds "
            f"{len(self._cache)} of them: raise cache_bytes, or write the data with smaller row groups"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
