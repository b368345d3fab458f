"""A bounded cache for what is expensive to read, shared by threads: each item is read once, by whoever asks first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Generic, TypeVar

from elastic_dgc.errors import DataError

T = TypeVar("T")


class ReadCache(Generic[T]):
    """The most recently used items by number, as many as `budget_bytes` hold, but always the last one.

    `read(index)` gives an item and its size in bytes. It is called outside of the lock, once per item however many
    threads want it; its exception reaches all of them and is not remembered. `get` raises `DataError` when another
    thread's read takes longer than `deadline_s`.
    """

    def __init__(self, read: Callable[[int], tuple[T, int]], budget_bytes: int, deadline_s: float = 600.0) -> None:
        self._read = read
        self.budget_bytes = budget_bytes
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._items: OrderedDict[int, tuple[T, int]] = OrderedDict()
        self._loading: dict[int, Future[T]] = {}
        self.held_bytes = 0
        self.reads = 0

    def __len__(self) -> int:
        return len(self._items)

    def get(self, index: int) -> T:
        """The item, from memory or read now."""
        with self._lock:
            if index in self._items:
                self._items.move_to_end(index)
                return self._items[index][0]
            pending = self._loading.get(index)
            if pending is None:
                mine: Future[T] = Future()
                self._loading[index] = mine
        if pending is not None:
            return self._wait(pending, index)
        try:
            item, size_bytes = self._read(index)
        except BaseException as error:
            with self._lock:
                del self._loading[index]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._loading[index]
            self._keep(index, item, size_bytes)
        mine.set_result(item)
        return item

    def _wait(self, pending: Future[T], index: int) -> T:
        try:
            return pending.result(self._deadline_s)
        except FutureTimeout as error:
            if pending.done():  # the read itself raised it
                raise
            raise DataError(
                f"reading row group {index} takes longer than {self._deadline_s:g} s: is the storage reachable?"
            ) from error

    def _keep(self, index: int, item: T, size_bytes: int) -> None:
        self.reads += 1
        self._items[index] = item, size_bytes
        self.held_bytes += size_bytes
        while self.held_bytes > self.budget_bytes and len(self._items) > 1:
            _, (_, size) = self._items.popitem(last=False)
            self.held_bytes -= size
