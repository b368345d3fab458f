"""Every corrupt image of a data set is listed at once, in order, from shards and from a folder alike."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from elastic_dgc.data import check
from elastic_dgc.data.check import check_data
from elastic_dgc.errors import DataError, UsageError


def png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4)).save(out, "PNG")
    return out.getvalue()


def listed(data: str, threads: int) -> dict[str, tuple[int, list[str]]]:
    return {split.name: (split.images, list(split.corrupt)) for split in check_data(data, threads)}


@pytest.mark.parametrize("threads", [1, 3])
def test_every_corrupt_row_of_shards_is_named_in_order(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "PIECE", 3)
    bad = {0, 7, 8, 19, 24}
    for split, numbers in (("train", bad), ("test", set())):
        images = [b"no image" if row in numbers else png() for row in range(25)]
        table = pa.table({"image": pa.array(images, pa.binary()), "label": [row % 2 for row in range(25)]})
        pq.write_table(table, tmp_path / f"{split}-0.parquet", row_group_size=10)
    found = listed(str(tmp_path), threads)
    assert found["test"] == (25, [])
    assert found["train"] == (
        25, [f"train-0.parquet, row {row}: it is no image that Pillow knows" for row in sorted(bad)],
    )  # fmt: skip


def test_a_part_of_a_file_that_cannot_be_read_is_named_once_and_the_rest_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "PIECE", 2)
    for split in ("train", "test"):
        for number in range(2):
            images = pa.array([png()] * 5 + [b"x"], pa.binary())
            table = pa.table({"image": images, "label": [0, 1] * 3})
            pq.write_table(table, tmp_path / f"{split}-{number}.parquet")
    splits = check_data(str(tmp_path), 2)
    (tmp_path / "train-0.parquet").unlink()
    first, second = splits[0].corrupt
    assert "train-0.parquet, rows 0 to 5 cannot be read" in first
    assert second.startswith("train-1.parquet, row 5: ")


def test_every_corrupt_file_of_a_folder_is_named(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("ant", "cat"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for index in range(3):
                (folder / f"{index}.png").write_bytes(png()[:40] if index == 1 and split == "train" else png())
    found = listed(str(tmp_path), 2)
    assert found["test"] == (6, [])
    assert [line.partition(": ")[0] for line in found["train"][1]] == [
        str(tmp_path / "train" / name / "1.png") for name in ("ant", "cat")
    ]


def test_it_is_a_stream_that_decodes_no_more_than_its_threads_need(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, guard = 0, threading.Lock()

    def piece() -> list[str]:
        nonlocal decoded
        with guard:
            decoded += 1
            return [str(decoded)]

    lines = check._in_threads((piece for _ in range(1000)), 2)
    assert next(lines) == "1"
    lines.close()  # type: ignore[attr-defined]
    assert decoded <= 5


def test_what_cannot_be_checked_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="threads = 0"):
        check_data("digits", 0)
    with pytest.raises(DataError, match="no such folder"):
        check_data(str(tmp_path / "none"), 1)
