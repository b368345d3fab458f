"""Prefetching: the batches of the coming attempts are loaded in threads while the model computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from elastic_dgc.data.order import Order
from elastic_dgc.data.source import Source, add_note
from elastic_dgc.errors import DataError, UsageError

Rows = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """One micro-batch: the row ids asked for, what the source made of them, and the rows it left out (corrupt)."""

    rows: Rows
    data: Any
    left_out: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


class Loader:
    """Loads what hosted virtual workers use in the attempts first_attempt..last_attempt (inclusive), ahead of time.

    At most the present attempt and `depth` coming ones are held. `threads` = 0, or a source that draws from the
    process's random generators, loads in the caller's thread. One thread calls `get`, with attempts that never
    decrease. What is asked for a second time is loaded again. Raises `UsageError` for a negative count.
    """

    def __init__(
        self,
        source: Source,
        order: Order,
        micro_batch: int,
        virtual_workers: Sequence[int],
        first_attempt: int,
        last_attempt: int,
        threads: int = 1,
        depth: int = 2,
        deadline_s: float = 600.0,
    ) -> None:
        if threads < 0 or depth < 0:
            raise UsageError(f"threads = {threads}, depth = {depth} of the loader: must not be below 0")
        self._source = source
        self._order = order
        self._micro_batch = micro_batch
        self._virtual_workers = tuple(virtual_workers)
        self._next_attempt = first_attempt
        self._last_attempt = last_attempt
        self._depth = depth
        self._deadline_s = deadline_s
        self._pending: dict[tuple[int, int], Future[list[Batch]]] = {}
        self._pool = _pool(source, threads)

    def get(self, attempt: int, virtual_worker: int) -> list[Batch]:
        """The micro-batches of a virtual worker in an attempt; an empty list where it has no samples.

        Raises what loading raised, the same exception object with its traceback and a note of attempt, virtual worker
        and rows; `DataError` if loading takes longer than the deadline.
        """
        self._look_ahead(attempt)
        future = self._pending.pop((attempt, virtual_worker), None)
        if future is None:
            return self._load(attempt, virtual_worker)
        return _result(future, self._deadline_s, self._where(attempt, virtual_worker))

    def close(self) -> None:
        """Start nothing new and forget what was prefetched. A load under way ends in its thread, unused."""
        self._pending.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _look_ahead(self, attempt: int) -> None:
        for key in [key for key in self._pending if key[0] < attempt]:
            self._pending.pop(key).cancel()
        if self._pool is None:
            return
        self._next_attempt = max(self._next_attempt, attempt)
        while self._next_attempt <= min(attempt + self._depth, self._last_attempt):
            for k in self._virtual_workers:
                self._pending[self._next_attempt, k] = self._pool.submit(self._load, self._next_attempt, k)
            self._next_attempt += 1

    def _load(self, attempt: int, virtual_worker: int) -> list[Batch]:
        epoch = self._order.epoch_of(attempt)
        batches = []
        rows = self._order.rows(attempt, virtual_worker)
        for part in self._order.micro_batches(rows, self._micro_batch):
            try:
                data = self._source.load(part, epoch)
            except Exception as error:
                add_note(error, f"while loading rows {_some(part)} {self._where(attempt, virtual_worker)}")
                raise
            batches.append(Batch(part, data, self._source.left_out(part, epoch)))
        return batches

    def _where(self, attempt: int, virtual_worker: int) -> str:
        return f"for virtual worker {virtual_worker} in attempt {attempt} (epoch {self._order.epoch_of(attempt)})"


def evaluation_batches(source: Source, batch: int) -> list[Rows]:
    """The rows of a split in file order, cut into batches; the last one may be short, even a single row."""
    if batch < 1:
        raise UsageError(f"evaluation batch = {batch}: must be at least 1")
    n = len(source)
    return [np.arange(first, min(first + batch, n), dtype=np.int64) for first in range(0, n, batch)]


def iterate(
    source: Source, rows: Iterable[Rows], threads: int = 1, depth: int = 2, deadline_s: float = 600.0
) -> Iterator[Batch]:
    """Load batches for evaluation in the given order, `depth` ahead. Closing the iterator stops prefetching."""

    def load(part: Rows) -> Batch:
        try:
            data = source.load(part, None)
        except Exception as error:
            add_note(error, f"while loading rows {_some(part)} for evaluation")
            raise
        return Batch(part, data, source.left_out(part, None))

    pool = _pool(source, threads)
    if pool is None:
        yield from map(load, rows)
        return
    waiting: list[Future[Batch]] = []
    try:
        for part in rows:
            waiting.append(pool.submit(load, part))
            if len(waiting) > depth:
                yield _result(waiting.pop(0), deadline_s, "for evaluation")
        while waiting:
            yield _result(waiting.pop(0), deadline_s, "for evaluation")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _pool(source: Source, threads: int) -> ThreadPoolExecutor | None:
    if threads == 0 or source.draws_globally:
        return None
    return ThreadPoolExecutor(threads, thread_name_prefix="loader")


def _result(future: Future[T], deadline_s: float, where: str) -> T:
    try:
        return future.result(deadline_s)
    except FutureTimeout as error:
        if future.done():  # raised by loading itself, not by waiting for it
            raise
        raise DataError(f"loading took longer than {deadline_s:g} s {where}: is the storage reachable?") from error


def _some(rows: Rows) -> str:
    shown = ", ".join(str(row) for row in rows[:8].tolist())
    return f"{shown} ... ({len(rows)} in all)" if len(rows) > 8 else shown
