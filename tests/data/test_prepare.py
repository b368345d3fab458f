"""Image folders and CIFAR archives become shards: every image once, bytes kept, whole or not at all."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from elastic_dgc.data.images import ImageSource
from elastic_dgc.data.parquet import ParquetShards
from elastic_dgc.data.prepare import prepare
from elastic_dgc.errors import DataError, ElasticDGCError, StorageError, UsageError

RNG = np.random.default_rng(0)


def picture(path: Path, height: int = 6, width: int = 9) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)


def image_folder(root: Path, test: str = "test") -> Path:
    for split, count in (("train", 7), (test, 2)):
        for name in ("cat", "ant"):
            for index in range(count):
                picture(root / split / name / f"{index}.{'jpg' if index % 2 else 'PNG'}")
    (root / "train" / "cat" / "notes.txt").write_text("not an image")
    return root


@pytest.mark.parametrize("test", ["test", "val"])
def test_a_folder_is_converted_with_its_bytes_in_seeded_order(tmp_path: Path, test: str) -> None:
    src = image_folder(tmp_path / "src", test)
    rows = prepare(str(src), str(tmp_path / "a"), rows_per_group=3, rows_per_file=8)
    assert rows == {"train": 14, "test": 4}
    shards = ParquetShards(str(tmp_path / "a"), "train")
    assert shards.group_sizes.tolist() == [3, 3, 2, 3, 3]
    assert shards.class_names == ["ant", "cat"]
    images, labels = shards.read(np.arange(14))
    expected = sorted(
        (path.read_bytes(), label)
        for label, name in enumerate(["ant", "cat"])
        for path in (src / "train" / name).iterdir()
        if path.suffix != ".txt"
    )
    assert sorted(zip(images, labels.tolist(), strict=True)) == expected
    assert labels.tolist() != sorted(labels.tolist())
    assert len(ParquetShards(str(tmp_path / "a"), "test")) == 4
    for name, seed in (("b", 0), ("c", 1)):
        prepare(str(src), str(tmp_path / name), seed=seed, rows_per_group=3, rows_per_file=8)
    same, other = (ParquetShards(str(tmp_path / name), "train").read(np.arange(14))[0] for name in ("b", "c"))
    assert same == images
    assert other != images


def test_size_shrinks_the_shorter_side_and_never_enlarges(tmp_path: Path) -> None:
    src = image_folder(tmp_path / "src")
    picture(src / "train" / "cat" / "big.jpg", 40, 60)
    prepare(str(src), str(tmp_path / "out"), size=20)
    images, _ = ParquetShards(str(tmp_path / "out"), "train").read(np.arange(15))
    sizes = sorted(Image.open(io.BytesIO(image or b"")).size for image in images)
    assert sizes == [(9, 6)] * 14 + [(30, 20)]


def cifar_files(classes: int = 10) -> dict[str, Any]:
    """What the CIFAR-10 archive holds, two images a batch, with keys of bytes as Python 2 wrote them."""

    def batch() -> dict[bytes, Any]:
        data = RNG.integers(0, 256, (2, 3072), dtype=np.uint8)
        return {b"data": data, b"labels": RNG.integers(0, classes, 2).tolist(), b"filenames": [b"x.png", b"y.png"]}

    files: dict[str, Any] = {f"data_batch_{i}": batch() for i in range(1, 6)} | {"test_batch": batch()}
    return files | {"batches.meta": {b"label_names": [f"class {i}".encode() for i in range(classes)]}}


def packed(path: Path, files: dict[str, Any], raw: dict[str, bytes] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in ({name: pickle.dumps(value, 2) for name, value in files.items()} | (raw or {})).items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("unpack", [False, True])
def test_the_cifar_archive_becomes_lossless_png(tmp_path: Path, unpack: bool) -> None:
    files = cifar_files()
    src = packed(tmp_path / "cifar-10-python.tar.gz", files)
    if unpack:
        with tarfile.open(src) as archive:
            archive.extractall(tmp_path / "unpacked")
        src = tmp_path / "unpacked"
    assert prepare(str(src), str(tmp_path / "out")) == {"train": 10, "test": 2}
    source = ImageSource(ParquetShards(str(tmp_path / "out"), "train"))
    assert source.shards.class_names == [f"class {i}" for i in range(10)]
    pixels, labels = source.load(np.arange(10), None)
    got = sorted((image.tobytes(), label) for image, label in zip(pixels.numpy(), labels.tolist(), strict=True))
    batches = [files[f"data_batch_{i}"] for i in range(1, 6)]
    wanted = [(row.tobytes(), y) for b in batches for row, y in zip(b[b"data"], b[b"labels"], strict=True)]
    assert got == sorted(wanted)


def test_cifar_100_uses_its_fine_labels(tmp_path: Path) -> None:
    batch = {b"data": np.zeros((3, 3072), np.uint8), b"fine_labels": [5, 0, 1], b"coarse_labels": [9, 9, 9]}
    names = {b"fine_label_names": [f"{i}".encode() for i in range(6)], b"coarse_label_names": [b"z"]}
    src = packed(tmp_path / "cifar-100-python.tar.gz", {"train": batch, "test": batch, "meta": names})
    prepare(str(src), str(tmp_path / "out"))
    assert sorted(ParquetShards(str(tmp_path / "out"), "test").read(np.arange(3))[1].tolist()) == [0, 1, 5]


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("owned",)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    src = packed(tmp_path / "c.tar.gz", cifar_files(), {"data_batch_3": pickle.dumps({b"data": Evil()}, protocol)})
    with pytest.raises(
        DataError, match=r"data_batch_3 is not a pickle of arrays and text \(it wants to run posix.mkdir"
    ):
        prepare(str(src), str(tmp_path / "out"))
    assert not (tmp_path / "owned").exists()


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    files = cifar_files()
    whole = packed(tmp_path / "a.tar.gz", files).read_bytes()
    (tmp_path / "short.tar.gz").write_bytes(whole[: len(whole) // 2])
    few = packed(tmp_path / "few.tar.gz", {name: files[name] for name in ("batches.meta", "data_batch_1")})
    wrong = packed(tmp_path / "wrong.tar.gz", files | {"test_batch": files["test_batch"] | {b"labels": [0, 10]}})
    other = packed(tmp_path / "other.tar.gz", {"readme": 1})
    for src, message in (
        (tmp_path / "short.tar.gz", "is the download complete"),
        (few, "data_batch_2, .* is missing"),
        (wrong, "test_batch: there must be 2 labels of 0..9"),
        (other, "no CIFAR python archive"),
    ):
        with pytest.raises(DataError, match=message):
            prepare(str(src), str(tmp_path / "out"))


def test_a_folder_that_is_not_ours_is_never_overwritten(tmp_path: Path) -> None:
    src, out = image_folder(tmp_path / "src"), tmp_path / "out"
    prepare(str(src), str(out))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UsageError, match=r"is not empty.*--force"):
        prepare(str(src), str(out), seed=1)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    prepare(str(src), str(out), seed=1, force=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} != before
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"also holds thesis.tex"):
        prepare(str(src), str(out), force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "src"]


def test_a_failure_leaves_the_old_data_and_no_litter(tmp_path: Path) -> None:
    src, out = image_folder(tmp_path / "src"), tmp_path / "out"
    prepare(str(src), str(out))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (src / "test" / "cat" / "9.jpg").write_bytes(b"\xff\xd8 broken")
    with pytest.raises(DataError, match=r"test/cat/9.jpg is corrupt"):
        prepare(str(src), str(out), force=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "src"]
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        prepare(str(src), str(tmp_path / "file" / "out"))


def test_corrupt_files_are_left_out_where_that_is_asked_for_and_the_files_stay_full(tmp_path: Path) -> None:
    src = image_folder(tmp_path / "src")
    for name in ("1.jpg", "2.PNG", "4.PNG"):
        (src / "train" / "cat" / name).write_bytes(b"no image")
    skipped: list[str] = []
    rows = prepare(
        str(src), str(tmp_path / "out"), rows_per_group=3, rows_per_file=8,
        skip_corrupt=lambda path, reason: skipped.append(f"{path.name} {reason}"),
    )  # fmt: skip
    assert rows == {"train": 11, "test": 4}
    assert sorted(skipped) == [f"{name} it is no image that Pillow knows" for name in ("1.jpg", "2.PNG", "4.PNG")]
    assert ParquetShards(str(tmp_path / "out"), "train").group_sizes.tolist() == [3, 3, 2, 3]
    for path in (src / "test").rglob("*.*"):
        path.write_bytes(b"no image")
    with pytest.raises(DataError, match="every image of the split 'test' is corrupt"):
        prepare(str(src), str(tmp_path / "none"), skip_corrupt=lambda path, reason: None)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: None, "no such file or folder"),
        (lambda s: s.write_text("hello"), "neither a folder of images nor a CIFAR"),
        (lambda s: picture(s / "train" / "a" / "0.png"), r"train and test \(or val\).*there is train"),
        (lambda s: [(s / n).mkdir(parents=True) for n in ("train", "test")], "train has no folder per class"),
        (lambda s: [picture(s / n / "0.png") for n in ("train/a", "test/b")], "classes that train does not have: b"),
        (lambda s: [picture(s / "train" / "a" / "0.png"), (s / "test").mkdir()], "test has no images"),
    ],
)
def test_sources_that_cannot_be_converted_are_said_in_one_line(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "src")
    with pytest.raises(ElasticDGCError, match=message) as caught:
        prepare(str(tmp_path / "src"), str(tmp_path / "out"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_class_names_survive_json(tmp_path: Path) -> None:
    for split in ("train", "test"):
        picture(tmp_path / "src" / split / 'ä "b"' / "0.png")
    prepare(str(tmp_path / "src"), str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == ['ä "b"']
