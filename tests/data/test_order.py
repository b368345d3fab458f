"""The order of samples: every row once per epoch, nobody alone, from the arguments only, and mostly sequential."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_dgc.data.order import Order
from elastic_dgc.errors import DataError, UsageError

ORDERS = st.builds(
    dict,
    group_sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(lambda sizes: sum(sizes) >= 2),
    virtual_workers=st.integers(1, 9),
    batch=st.integers(2, 17),
    seed=st.integers(0, 2**31),
    window=st.integers(1, 50),
    shuffle=st.booleans(),
)


def epoch_rows(order: Order, epoch: int) -> list[np.ndarray]:
    """The rows of every (attempt, virtual worker) of an epoch."""
    first = epoch * order.steps_per_epoch
    attempts = range(first, first + order.steps_per_epoch)
    return [order.rows(attempt, k) for attempt in attempts for k in range(order.virtual_workers)]


@given(arguments=ORDERS, epoch=st.integers(0, 3))
def test_an_epoch_uses_each_row_exactly_once_and_nobody_gets_a_single_sample(arguments: dict, epoch: int) -> None:
    order = Order(**arguments)
    parts = epoch_rows(order, epoch)
    assert sorted(np.concatenate(parts).tolist()) == list(range(order.samples))
    assert all(len(part) != 1 for part in parts)
    assert all(part.dtype == np.int64 for part in parts)
    full_steps = order.samples // (order.virtual_workers * order.batch)
    sizes = [len(part) for part in parts]
    assert all(size >= order.batch for size in sizes[: full_steps * order.virtual_workers])
    assert max(sizes) <= order.batch + 1
    assert order.epoch_of(epoch * order.steps_per_epoch) == epoch


@given(arguments=ORDERS, data=st.data())
def test_rows_depend_on_the_arguments_only(arguments: dict, data: st.DataObject) -> None:
    used, fresh = Order(**arguments), Order(**arguments)
    for _ in range(5):
        attempt = data.draw(st.integers(0, 5 * used.steps_per_epoch))
        k = data.draw(st.integers(0, used.virtual_workers - 1))
        expected = Order(**arguments).rows(attempt, k)
        assert (used.rows(attempt, k) == expected).all()
        assert used.count(attempt, k) == len(expected)
    assert (fresh.rows(attempt, k) == expected).all()


@pytest.mark.parametrize("group_sizes", [[50] * 40, [1] * 2000], ids=["row groups", "map-style"])
def test_epochs_seeds_and_shuffling_make_different_orders(group_sizes: list[int]) -> None:
    order = Order(group_sizes, 4, 16, seed=1, window=200)
    sequences = [np.concatenate(epoch_rows(order, 0)), np.concatenate(epoch_rows(order, 1))]
    sequences.append(np.concatenate(epoch_rows(Order(group_sizes, 4, 16, seed=2, window=200), 0)))
    for i, a in enumerate(sequences):
        assert (np.diff(a) == 1).mean() < 0.05
        assert all((a == b).mean() < 0.05 for b in sequences[:i])
    # Rows change their virtual worker from epoch to epoch, otherwise each would see a quarter of the data only.
    owners = [np.isin(np.arange(2000), np.concatenate(epoch_rows(order, e)[::4])) for e in range(30)]
    assert np.any(owners, axis=0).mean() > 0.99
    assert np.mean(owners, axis=0).max() < 0.8


def test_without_shuffling_each_virtual_worker_reads_its_range_in_file_order() -> None:
    order = Order([7, 5, 9], 2, 5, seed=3, shuffle=False)  # 21 rows: 2 full steps of 10, the single one joins
    assert order.steps_per_epoch == 2
    assert np.concatenate([order.rows(0, 0), order.rows(1, 0), order.rows(0, 1), order.rows(1, 1)]).tolist() == list(
        range(21)
    )
    assert len(order.rows(1, 0)) == 6


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), k=st.integers(0, 7))
def test_reading_is_mostly_sequential(seed: int, k: int) -> None:
    """Within a window of 2048 rows a virtual worker touches the row groups of 2048 consecutive rows, and two more at
    the seams, and it never comes back to them later."""
    order = Order([500] * 100, 8, 32, seed=seed)
    steps = order.steps_per_epoch - 1
    groups = [set((order.rows(attempt, k) // 500).tolist()) for attempt in range(steps)]
    per_window = 2048 // 32
    for first in range(0, steps, per_window):
        assert len(set().union(*groups[first : first + per_window])) <= 2048 // 500 + 2
    last_seen = {group: attempt for attempt, touched in enumerate(groups) for group in touched}
    first_seen = {group: attempt for attempt, touched in reversed(list(enumerate(groups))) for group in touched}
    assert max(last_seen[group] - first_seen[group] for group in last_seen) < 2 * per_window


def test_a_million_rows_cost_no_work_per_row_and_call() -> None:
    order = Order(np.ones(1_000_003, dtype=np.int64), 8, 32, seed=0)
    order.rows(0, 0)
    made = order._groups_of.cache_info().misses, order._window_of.cache_info().misses
    for attempt in range(2048 // 32):
        order.rows(attempt, 0)
    assert (order._groups_of.cache_info().misses, order._window_of.cache_info().misses) == made


@given(n=st.integers(0, 60), micro_batch=st.integers(2, 20))
def test_micro_batches_cut_without_a_single_one(n: int, micro_batch: int) -> None:
    rows = np.arange(n)
    parts = Order.micro_batches(rows, micro_batch)
    assert [row for part in parts for row in part] == rows.tolist()
    assert all(micro_batch <= len(part) <= micro_batch + 1 for part in parts[:-1])
    assert n == 1 or all(len(part) != 1 for part in parts)
    assert all(part.size for part in parts)


def test_single_samples_are_left_single_where_they_were_asked_for() -> None:
    assert [part.tolist() for part in Order.micro_batches(np.arange(3), 1)] == [[0], [1], [2]]


@pytest.mark.parametrize("sizes", [[], [1], [0, 1, 0]])
def test_fewer_than_two_samples_are_an_error(sizes: list[int]) -> None:
    with pytest.raises(DataError, match=f"has {sum(sizes)} samples.*at least 2"):
        Order(sizes, 2, 4, seed=0)


@pytest.mark.parametrize("name", ["virtual_workers", "batch", "window"])
def test_counts_below_one_are_named(name: str) -> None:
    arguments = {"virtual_workers": 2, "batch": 4, "window": 8} | {name: 0}
    with pytest.raises(UsageError, match=f"{name} = 0"):
        Order([10], seed=0, **arguments)
