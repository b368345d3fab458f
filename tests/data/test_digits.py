"""The digits that the package ships are whole, split by digit, and small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elastic_dgc.data.digits import digits_path
from elastic_dgc.data.images import ImageSource
from elastic_dgc.data.parquet import ParquetShards


def split(name: str) -> tuple[np.ndarray, np.ndarray]:
    source = ImageSource(ParquetShards(digits_path(), name), channels=1)
    assert source.shards.check_labels() == 10
    assert source.sample_shape == (1, 8, 8)
    assert len(source.group_sizes) > 5
    images, labels = source.load(np.arange(len(source)), None)
    return images.numpy(), labels.numpy()


def test_the_digits_are_scikit_learns() -> None:
    sklearn = pytest.importorskip("sklearn.datasets").load_digits()
    parts = [split("train"), split("test")]
    values = np.round(np.concatenate([images for images, _ in parts]).reshape(-1, 64).astype(int) * 16 / 255).astype(
        int
    )
    labels = np.concatenate([labels for _, labels in parts])
    ours = sorted(map(tuple, np.column_stack([values, labels]).tolist()))
    assert ours == sorted(map(tuple, np.column_stack([sklearn.data.astype(int), sklearn.target]).tolist()))


def test_the_split_is_stratified_and_shuffled() -> None:
    (_, train), (_, test) = split("train"), split("test")
    assert len(train) + len(test) == 1797
    assert np.abs(np.bincount(test) / np.bincount(np.concatenate([train, test])) - 0.2).max() < 0.01
    assert np.abs(np.diff(train) == 1).mean() < 0.2


def test_they_are_small_and_attributed() -> None:
    files = {path.name: path for path in Path(digits_path()).iterdir()}
    assert set(files) == {"train-00000.parquet", "test-00000.parquet", "classes.json", "ATTRIBUTION.md"}
    assert sum(path.stat().st_size for path in files.values()) < 250_000
    assert "CC BY 4.0" in files["ATTRIBUTION.md"].read_text()
