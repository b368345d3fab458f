"""Prefetching changes when batches are loaded, never what they are."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from elastic_dgc.data.loader import Loader, evaluation_batches, iterate
from elastic_dgc.data.order import Order
from elastic_dgc.data.source import Source
from elastic_dgc.errors import DataError, UsageError

SIZES = [10, 10, 13]
ORDER = Order(SIZES, 3, 4, seed=1)


class Recording(Source):
    group_sizes = SIZES
    fingerprint = "0"

    def __init__(self, bad_row: int | None = None) -> None:
        self.bad_row = bad_row
        self.loaded: list[tuple[int, ...]] = []
        self.threads: set[int] = set()

    def load(self, rows: np.ndarray, epoch: int | None) -> Any:
        self.loaded.append(tuple(rows.tolist()))
        self.threads.add(threading.get_ident())
        if self.bad_row in rows.tolist():
            raise OSError("the disk is gone")
        return rows * 10, epoch

    def left_out(self, rows: np.ndarray, epoch: int | None) -> np.ndarray:
        return rows[rows == 5]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_get_gives_the_micro_batches_of_the_order(threads: int) -> None:
    last = 2 * ORDER.steps_per_epoch - 1
    source = Recording()
    with Loader(source, ORDER, 2, (0, 2), 1, last, threads=threads) as loader:
        for attempt in range(1, last + 1):
            for k in (0, 2):
                batches = loader.get(attempt, k)
                rows = ORDER.rows(attempt, k)
                assert [batch.rows.tolist() for batch in batches] == [p.tolist() for p in Order.micro_batches(rows, 2)]
                assert all((batch.data[0] == batch.rows * 10).all() for batch in batches)
                assert all(batch.data[1] == ORDER.epoch_of(attempt) for batch in batches)
                assert [row for batch in batches for row in batch.left_out] == [row for row in rows if row == 5]
    own = threading.get_ident()
    assert (own in source.threads) == (threads == 0)
    wanted = [ORDER.rows(a, k) for a in range(1, last + 1) for k in (0, 2)]
    assert len(source.loaded) == sum(len(Order.micro_batches(rows, 2)) for rows in wanted)  # nothing twice


def test_memory_is_bounded_and_nothing_beyond_the_last_attempt_is_loaded() -> None:
    with Loader(Recording(), ORDER, 4, (0, 1), 0, 2, depth=1) as loader:
        loader.get(0, 0)
        assert set(loader._pending) == {(0, 1), (1, 0), (1, 1)}
        loader.get(2, 1)  # attempts may be passed over
        assert set(loader._pending) == {(2, 0)}
    assert not loader._pending


def test_what_is_asked_for_again_is_loaded_again() -> None:
    with Loader(Recording(), ORDER, 4, (0,), 0, 5) as loader:
        first, again = loader.get(1, 0), loader.get(1, 0)
    assert first[0].rows.tolist() == again[0].rows.tolist()


@pytest.mark.parametrize("threads", [0, 1])
def test_an_exception_comes_out_of_the_get_it_belongs_to(threads: int) -> None:
    bad = int(ORDER.rows(1, 0)[0])
    with Loader(Recording(bad), ORDER, 4, (0,), 0, 5, threads=threads) as loader:
        loader.get(0, 0)
        with pytest.raises(OSError, match="the disk is gone") as caught:
            loader.get(1, 0)
        loader.get(2, 0)
    (note,) = caught.value.__notes__
    assert "virtual worker 0 in attempt 1 (epoch 0)" in note
    assert str(bad) in note
    assert caught.traceback[-1].name == "load"


def test_a_load_that_hangs_meets_the_deadline() -> None:
    release = threading.Event()

    class Hanging(Recording):
        def load(self, rows: np.ndarray, epoch: int | None) -> Any:
            release.wait(30)

    loader = Loader(Hanging(), ORDER, 4, (0,), 0, 5, deadline_s=0.01)
    with pytest.raises(DataError, match=r"longer than 0.01 s for virtual worker 0 in attempt 0"):
        loader.get(0, 0)
    loader.close()
    release.set()


def test_a_source_that_draws_globally_is_loaded_in_the_callers_thread() -> None:
    source = Recording()
    source.draws_globally = True
    with Loader(source, ORDER, 4, (0,), 0, 5, threads=2) as loader:
        loader.get(0, 0)
    assert source.threads == {threading.get_ident()}


@pytest.mark.parametrize("threads", [0, 2])
def test_evaluation_reads_every_row_once_in_order(threads: int) -> None:
    source = Recording()
    parts = evaluation_batches(source, 8)
    assert [len(part) for part in parts] == [8, 8, 8, 8, 1]
    batches = list(iterate(source, parts, threads=threads))
    assert [row for batch in batches for row in batch.data[0]] == [10 * row for row in range(33)]
    assert all(batch.data[1] is None for batch in batches)
    with pytest.raises(OSError, match="the disk") as caught:
        list(iterate(Recording(20), parts, threads=threads))
    assert "for evaluation" in caught.value.__notes__[0]
    with pytest.raises(UsageError, match="evaluation batch = 0"):
        evaluation_batches(source, 0)
