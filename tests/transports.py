"""Transports over real sockets, made side by side in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

from elastic_dgc.exchange.ask import Key, Kind
from elastic_dgc.exchange.tcp import Listener, TcpTransport

T = TypeVar("T")


RUN = b"run of the tests"


SECRET = b"nobody knows this"


KEY = Key(Kind.MESSAGE, 5, 0)


def side_by_side(tasks: Sequence[Callable[[], T]]) -> list[T]:
    with ThreadPoolExecutor(max(1, len(tasks))) as pool:
        return [future.result(timeout=60) for future in [pool.submit(task) for task in tasks]]


def listen(stack: ExitStack, size: int) -> list[Listener]:
    return [stack.enter_context(Listener("127.0.0.1")) for _ in range(size)]


def join(listeners: Sequence[Listener], rank: int, **other: object) -> TcpTransport:
    values: dict[str, object] = {"run": RUN, "view": 2, "secret": SECRET, "connect_deadline_s": 20.0, **other}
    return TcpTransport(listeners[rank], rank, [one.address for one in listeners], **values)  # type: ignore[arg-type]


def mesh(stack: ExitStack, size: int, **other: object) -> list[TcpTransport]:
    listeners = listen(stack, size)
    transports = side_by_side([lambda r=r: join(listeners, r, **other) for r in range(size)])  # type: ignore[misc]
    stack.callback(lambda: side_by_side([transport.close for transport in transports]))
    return transports


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dgc-")]
