"""Sources over map-style data sets: pure batches, augmentation by key, errors with their place."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from elastic_dgc.data.source import MapSource
from elastic_dgc.errors import DataError, UsageError

ROWS = np.array([3, 0, 7], dtype=np.int64)


class Squares:
    def __init__(self, n: int = 10, offset: int = 0) -> None:
        self.n, self.offset = n, offset

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index + self.offset)]), index * index


class Noisy(Squares):
    """Draws from all three global generators, as random torchvision transforms inside a data set do."""

    def __getitem__(self, index: int) -> Any:
        return torch.rand(2), np.random.rand(2), random.random()


def jitter(sample: Any, rng: np.random.Generator) -> Any:
    return sample[0] + rng.random(), sample[1]


def test_a_batch_is_collated_and_the_transform_is_for_training_only() -> None:
    source = MapSource(Squares(), transform=jitter, seed=5)
    assert len(source) == 10
    x, y = source.load(ROWS, None)
    assert x.tolist() == [[3.0], [0.0], [7.0]]
    assert y.tolist() == [9, 0, 49]
    assert not source.draws_globally
    trained = source.load(ROWS, 2)[0]
    assert (trained != x).all()


def test_augmentation_depends_on_seed_epoch_and_sample_alone() -> None:
    source = MapSource(Squares(), transform=jitter, seed=5)
    together = source.load(ROWS, 2)[0]
    alone = torch.cat([source.load(ROWS[i : i + 1], 2)[0] for i in (2, 1, 0)]).flip(0)
    assert torch.equal(together, alone)
    assert not torch.equal(together, source.load(ROWS, 3)[0])
    assert not torch.equal(together, MapSource(Squares(), transform=jitter, seed=6).load(ROWS, 2)[0])


def test_a_data_set_that_draws_globally_is_found_out_seeded_and_leaves_the_generators_alone() -> None:
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    source = MapSource(Noisy(), seed=5)
    assert source.draws_globally
    first = source.load(ROWS, 2)
    for part, again, reordered in zip(first, source.load(ROWS, 2), source.load(ROWS[::-1], 2), strict=True):
        assert torch.equal(part, again)
        assert torch.equal(part, reordered.flip(0))
    assert not torch.equal(first[0], source.load(ROWS, 3)[0])
    assert (torch.rand(1), np.random.rand(), random.random()) == expected


def test_fingerprint_follows_length_and_values() -> None:
    def fingerprint(dataset: Any) -> str:
        return MapSource(dataset).fingerprint

    assert fingerprint(Squares()) == fingerprint(Squares())
    assert len({fingerprint(d) for d in (Squares(), Squares(11), Squares(offset=1), list(range(10)))}) == 4
    assert fingerprint(Noisy()) == fingerprint(Noisy())


def test_a_data_set_that_is_no_pure_function_of_the_index_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    class Counting(Squares):
        calls = 0

        def __getitem__(self, index: int) -> Any:
            self.calls += 1
            return self.calls

    MapSource(Counting())
    assert "pure function" in caplog.text


def test_exceptions_of_user_code_pass_through_with_the_sample() -> None:
    class Broken(Squares):
        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise KeyError("no such patient")
            return super().__getitem__(index)

    def refuse(sample: Any, rng: np.random.Generator) -> Any:
        raise ValueError("too dark")

    with pytest.raises(KeyError, match="no such patient") as caught:
        MapSource(Broken()).load(ROWS, None)
    assert caught.value.__notes__ == ["in sample 7 of the data set " + Broken.__qualname__]
    with pytest.raises(ValueError, match="too dark") as raised:
        MapSource(Squares(), transform=refuse).load(ROWS, 4)
    assert raised.value.__notes__ == ["in the transform of sample 3 in epoch 4"]


def test_what_is_no_map_style_data_set_is_refused() -> None:
    with pytest.raises(UsageError, match="__getitem__"):
        MapSource(iter([1, 2]))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="empty"):
        MapSource([])
