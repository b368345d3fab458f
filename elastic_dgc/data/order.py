"""Which samples a virtual worker uses in an attempt: a pure function of the sizes of the row groups and the seed.

Nothing here is state, so nothing is saved or handed over: the cursor of a run is its attempt number. The row groups
of an epoch are permuted, their sequence is cut into one contiguous range per virtual worker, and each range is
shuffled within consecutive windows. So reading stays mostly sequential and nobody reads everything. No sample is
dropped and none is used twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from elastic_dgc.errors import DataError, UsageError
from elastic_dgc.seeds import permutation

Rows = npt.NDArray[np.int64]

_GROUPS, _WINDOW = 1, 2  # what a permutation is for, part of its key


class Order:
    """The order of `samples` rows over epochs, attempts and virtual workers.

    A row id is the row's position in the concatenation of the row groups in file order. `batch` counts the samples
    of one virtual worker in a full step. An epoch has samples // (K * batch) full steps. Of the r rows that remain,
    a single one joins the last full step (virtual worker 0 has batch + 1 samples there); two or more make one short
    step, dealt over the first min(K, r // 2) virtual workers in shares that differ by one at most, so that nobody
    has exactly one sample (batch normalisation cannot use one) and the others have none. Ranges of virtual workers
    are equal up to that. With `batch` = 1 single samples are what was asked for.

    Used by the loader and by the audit. Safe to use from several threads. Raises `DataError` for fewer than two
    samples, `UsageError` for a count below one.
    """

    def __init__(
        self,
        group_sizes: Sequence[int] | Rows,
        virtual_workers: int,
        batch: int,
        seed: int,
        window: int = 2048,
        shuffle: bool = True,
    ) -> None:
        for name, value in (("virtual_workers", virtual_workers), ("batch", batch), ("window", window)):
            if value < 1:
                raise UsageError(f"{name} = {value}: must be at least 1")
        self.virtual_workers = virtual_workers
        self.batch = batch
        self.seed = seed
        self.window = window
        self.shuffle = shuffle
        self._sizes = np.asarray(group_sizes, dtype=np.int64)
        if self._sizes.ndim != 1 or (self._sizes < 0).any():
            raise DataError("the sizes of the row groups must be a list of counts, none below 0")
        self.samples = int(self._sizes.sum())
        if self.samples < 2:
            raise DataError(f"the data set has {self.samples} samples: training needs at least 2")
        self._starts = np.cumsum(self._sizes) - self._sizes
        full, rest = divmod(self.samples, virtual_workers * batch)
        self._full_steps = full
        self._tail = np.zeros(virtual_workers, dtype=np.int64)  # samples of each virtual worker beyond the full steps
        if rest == 1 and full:
            self._tail[0] = 1
        elif rest:
            sharers = min(virtual_workers, rest // 2)
            share, more = divmod(rest, sharers)
            self._tail[:sharers] = share
            self._tail[:more] += 1
        self._short_step = rest >= 2
        self.steps_per_epoch = full + self._short_step
        lengths = full * batch + self._tail
        self._range_starts = np.cumsum(lengths) - lengths
        self._range_lengths = lengths
        self._groups_of = lru_cache(maxsize=2)(self._group_order)
        self._window_of = lru_cache(maxsize=max(64, 4 * virtual_workers))(self._window_order)

    def epoch_of(self, attempt: int) -> int:
        """The epoch, from 0, that an attempt belongs to."""
        return attempt // self.steps_per_epoch

    def count(self, attempt: int, virtual_worker: int) -> int:
        """How many samples `rows` returns."""
        first, end = self._span(attempt, virtual_worker)
        return end - first

    def rows(self, attempt: int, virtual_worker: int) -> Rows:
        """The row ids, int64[n] with n = `count`, that a virtual worker uses in an attempt, in this order."""
        epoch = self.epoch_of(attempt)
        first, end = self._span(attempt, virtual_worker)
        positions = np.arange(first, end, dtype=np.int64)
        if self.shuffle:
            for number in range(first // self.window, -(-end // self.window)):
                base = number * self.window
                a, b = max(first, base), min(end, base + self.window)
                order = self._window_of(epoch, virtual_worker, number)
                positions[a - first : b - first] = base + order[a - base : b - base]
        positions += self._range_starts[virtual_worker]
        groups, ends = self._groups_of(epoch)
        at = np.searchsorted(ends, positions, side="right")
        group = groups[at]
        return self._starts[group] + positions - (ends[at] - self._sizes[group])

    @staticmethod
    def micro_batches(rows: Rows, micro_batch: int) -> list[Rows]:
        """Cut a virtual worker's rows into micro-batches. A last one of a single sample joins the one before, unless
        single samples were asked for. No rows, no micro-batches. Raises `UsageError`."""
        if micro_batch < 1:
            raise UsageError(f"micro_batch = {micro_batch}: must be at least 1")
        cuts = list(range(0, len(rows), micro_batch))
        if len(cuts) > 1 and micro_batch > 1 and len(rows) - cuts[-1] == 1:
            cuts.pop()
        ends = [*cuts[1:], len(rows)][: len(cuts)]
        return [rows[a:b] for a, b in zip(cuts, ends, strict=True)]

    def _span(self, attempt: int, virtual_worker: int) -> tuple[int, int]:
        """First and end position of an attempt within the range of a virtual worker."""
        if attempt < 0 or not 0 <= virtual_worker < self.virtual_workers:
            raise ValueError(f"no attempt {attempt} of virtual worker {virtual_worker} of {self.virtual_workers}")
        step = attempt % self.steps_per_epoch
        first = step * self.batch
        if step == self.steps_per_epoch - 1:
            return first, int(self._range_lengths[virtual_worker])
        return first, first + self.batch

    def _group_order(self, epoch: int) -> tuple[Rows, Rows]:
        """The row groups in the order of an epoch, and where each ends in their concatenation."""
        n = len(self._sizes)
        groups = permutation(n, self.seed, _GROUPS, epoch) if self.shuffle else np.arange(n, dtype=np.int64)
        return groups, np.cumsum(self._sizes[groups])

    def _window_order(self, epoch: int, virtual_worker: int, number: int) -> Rows:
        size = min(self.window, int(self._range_lengths[virtual_worker]) - number * self.window)
        return permutation(size, self.seed, _WINDOW, epoch, virtual_worker, number)
