"""Parquet shards: the rows that are there, and one clear line for everything that is not."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from elastic_dgc.data.cache import ReadCache
from elastic_dgc.data.parquet import ParquetShards
from elastic_dgc.errors import DataError

SIZES = [7, 4]  # rows of the files, in row groups of 3


def write(folder: Any, filesystem: fs.FileSystem | None = None, *, struct: bool = False, labels: Any = None) -> None:
    first = 0
    for index, n in enumerate(SIZES):
        images = [f"image {row}".encode() for row in range(first, first + n)]
        column: Any = pa.array(images, pa.binary())
        if struct:
            column = pa.array([{"bytes": image, "path": None} for image in images])
        label = pa.array(labels[first : first + n] if labels else range(first, first + n), pa.int32())
        table = pa.table({"extra": [0.0] * n, "image": column, "label": label})
        path = f"{folder}/train-{index:05d}.parquet"
        pq.write_table(table, path, row_group_size=3, filesystem=filesystem)
        first += n


@pytest.mark.parametrize("struct", [False, True], ids=["binary", "Hugging Face"])
def test_reads_rows_in_the_order_asked_for(tmp_path: Path, struct: bool) -> None:
    write(tmp_path, struct=struct)
    shards = ParquetShards(str(tmp_path), "train")
    assert shards.group_sizes.tolist() == [3, 3, 1, 3, 1]
    rows = np.array([10, 0, 6, 5, 7, 0])
    images, labels = shards.read(rows)
    assert images == [f"image {row}".encode() for row in rows]
    assert labels.tolist() == rows.tolist()
    assert labels.dtype == np.int64
    assert shards.locate(8) == "train-00001.parquet, row 1"
    assert shards.class_names is None


@pytest.mark.parametrize("make", ["file://", "mock"])
def test_other_filesystems_give_the_same(tmp_path: Path, make: str) -> None:
    write(tmp_path)
    local = ParquetShards(str(tmp_path), "train")
    if make == "mock":
        filesystem = fs._MockFileSystem()
        filesystem.create_dir("bucket/data")
        write("bucket/data", filesystem)
        other = ParquetShards("bucket/data", "train", filesystem=filesystem)
    else:
        other = ParquetShards(f"file://{tmp_path}", "train")
    assert other.read(np.arange(11))[0] == local.read(np.arange(11))[0]
    assert other.fingerprint == local.fingerprint


def test_memory_is_bounded_and_a_window_is_read_once(tmp_path: Path) -> None:
    write(tmp_path)
    shards = ParquetShards(str(tmp_path), "train")
    rng = np.random.default_rng(0)
    for _ in range(5):
        shards.read(rng.permutation(11))
    assert shards._cache.reads == 5
    tight = ParquetShards(str(tmp_path), "train", cache_bytes=1)
    assert tight.read(np.arange(11))[0] == shards.read(np.arange(11))[0]
    assert len(tight._cache) == 1


def test_a_cache_too_small_for_the_windows_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path)
    shards = ParquetShards(str(tmp_path), "train", cache_bytes=1)
    shards._rows_served = -10_000  # as if the windows were large and little of each group had been served
    for row in [0, 3] * 50:
        shards.read(np.array([row]))
    assert caplog.text.count("raise cache_bytes") == 1
    healthy = ParquetShards(str(tmp_path), "train", cache_bytes=1)
    for _ in range(100):
        healthy.read(np.arange(11))
    assert caplog.text.count("raise cache_bytes") == 1


def test_threads_that_want_the_same_item_read_it_once_and_share_the_error() -> None:
    inside, calls = threading.Event(), []

    def read(index: int) -> tuple[str, int]:
        calls.append(index)
        inside.wait(10)
        if index == 1:
            raise OSError("gone")
        return f"item {index}", 1

    cache = ReadCache(read, 10)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(cache.get, index) for index in (0, 0, 1)]
        inside.set()
        assert [future.result() for future in futures[:2]] == ["item 0"] * 2
        with pytest.raises(OSError, match="gone"):
            futures[2].result()
    assert sorted(calls) == [0, 1]
    with pytest.raises(OSError, match="gone"):  # not remembered: tried again
        cache.get(1)
    assert calls.count(1) == 2


def test_the_fingerprint_follows_the_data(tmp_path: Path) -> None:
    seen = set()
    for name, labels, kwargs in (("a", None, {}), ("b", None, {"struct": True}), ("c", [0] * 11, {})):
        (tmp_path / name).mkdir()
        write(tmp_path / name, labels=labels, **kwargs)
        seen.add(ParquetShards(str(tmp_path / name), "train").fingerprint)
    (tmp_path / "a" / "train-00001.parquet").rename(tmp_path / "a" / "train-00002.parquet")
    seen.add(ParquetShards(str(tmp_path / "a"), "train").fingerprint)
    assert len(seen) == 4


def one_file(folder: Path, **columns: Any) -> None:
    pq.write_table(pa.table(columns), folder / "train-0.parquet")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: f.rmdir(), "no such folder"),
        (lambda f: (f / "x.txt").touch(), r"no train-\*\.parquet; there is x.txt"),
        (
            lambda f: (f / "train-0.parquet").write_text("hello, world"),
            "train-0.parquet is not a readable Parquet file",
        ),
        (lambda f: one_file(f, img=[b"x"], label=[1]), "no column 'image', its columns are img, label"),
        (lambda f: one_file(f, image=[b"x"], y=[1]), "no column 'label'"),
        (lambda f: one_file(f, image=["x"], label=[1]), "'image' is string, it must be binary"),
        (lambda f: one_file(f, image=[b"x"], label=[1.0]), "'label' is double, it must be an integer"),
        (lambda f: one_file(f, image=pa.array([], pa.binary()), label=pa.array([], pa.int64())), "no rows"),
        (lambda f: (one_file(f, image=[b"x"], label=[1]), (f / "classes.json").write_text("{")), "is not JSON"),
        (lambda f: (one_file(f, image=[b"x"], label=[1]), (f / "classes.json").write_text("3")), "list of names"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(tmp_path: Path, make: Any, message: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    make(folder)
    with pytest.raises(DataError, match=message) as caught:
        ParquetShards(str(folder), "train")
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_scheme_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere://x: no filesystem"):
        ParquetShards("nowhere://x", "train")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file: give the folder"):
        ParquetShards(str(tmp_path / "file"), "train")


def test_labels_are_checked_with_their_place(tmp_path: Path) -> None:
    write(tmp_path, labels=[0, 1, 2, 0, 1, 2, 0, 0, 3, 3, 1])
    shards = ParquetShards(str(tmp_path), "train")
    assert shards.check_labels() == 4
    assert shards.check_labels(7) == 7
    with pytest.raises(DataError, match=r"train-00001.parquet, row 1 has the label 3, labels must be 0..2 \(2 such"):
        shards.check_labels(3)
    (tmp_path / "classes.json").write_text(json.dumps({"classes": ["a", "b", "c"]}))
    with pytest.raises(DataError, match=r"labels must be 0..2"):
        ParquetShards(str(tmp_path), "train").check_labels()


@pytest.mark.parametrize(
    ("labels", "odd", "never"),
    [([0, 999, 2, 1], "row 1 has the label 999", "996 of the labels from 0 to 999 never occur (3 to 998)"),
     ([9, 0, 50, 1, 52], "row 2 has the label 50", "48 of the labels from 0 to 52 never occur (2 to 8, 10 to 49, 51)"),
     ([7], "row 0 has the label 7", "7 of the labels from 0 to 7 never occur (0 to 6)")],
)  # fmt: skip
def test_labels_most_of_which_never_occur_are_refused_with_the_first_odd_sample_unless_they_are_announced(
    tmp_path: Path, labels: list[int], odd: str, never: str
) -> None:
    one_file(tmp_path, image=[b"x"] * len(labels), label=labels)
    shards = ParquetShards(str(tmp_path), "train")
    with pytest.raises(DataError) as error:
        shards.check_labels()
    assert f"train-0.parquet, {odd}, but in the split 'train' {never}" in str(error.value)
    assert f"say so by classes = {max(labels) + 1}" in str(error.value)
    assert shards.check_labels(max(labels) + 1) == max(labels) + 1


def test_a_label_that_never_occurs_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one_file(tmp_path, image=[b"x"] * 4, label=[1, 2, 3, 2])
    shards = ParquetShards(str(tmp_path), "train")
    assert shards.check_labels(warn=False) == 4
    assert not caplog.records
    assert shards.check_labels() == 4
    (record,) = caplog.records
    assert "row 0 has the label 1, but in the split 'train' 1 of the labels from 0 to 3 never occurs (0)" in record.msg
    shards.check_labels(4)
    assert len(caplog.records) == 1


def test_missing_and_negative_labels_are_errors(tmp_path: Path) -> None:
    one_file(tmp_path, image=[b"x", b"y"], label=pa.array([0, None]))
    shards = ParquetShards(str(tmp_path), "train")
    for use in (shards.check_labels, lambda: shards.read(np.array([0]))):
        with pytest.raises(DataError, match=r"train-0.parquet, row 1 has no label"):
            use()
    one_file(tmp_path, image=[b"x", b"y"], label=[0, -1])
    with pytest.raises(DataError, match="row 1 has the label -1"):
        ParquetShards(str(tmp_path), "train").check_labels()


def test_a_file_that_vanishes_later_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    shards = ParquetShards(str(tmp_path), "train")
    (tmp_path / "train-00001.parquet").unlink()
    with pytest.raises(DataError, match=r"train-00001.parquet, rows 0 to 2 cannot be read"):
        shards.read(np.array([8]))
