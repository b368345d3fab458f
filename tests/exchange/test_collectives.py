"""Gloo beside the frames: the same payloads under the same keys, and a lost peer is named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from elastic_dgc.errors import PeerLost
from elastic_dgc.exchange.ask import Ask, Key, Kind, Parcel
from elastic_dgc.exchange.collectives import CollectiveTransport, open_gloo, open_store
from elastic_dgc.exchange.listener import Listener
from elastic_dgc.exchange.tcp import TcpTransport

pytestmark = pytest.mark.processes
HERE = "127.0.0.1"


def on_all(size: int, do: Callable[[int, CollectiveTransport, threading.Barrier], Any]) -> list[Any]:
    """Run this on every rank, in a thread each, and return what came of it."""
    listeners = [Listener(HERE) for _ in range(size)]
    addresses = [one.address for one in listeners]
    store = open_store(HERE, 30.0)
    barrier = threading.Barrier(size, timeout=30)

    def worker(rank: int) -> Any:
        frames = TcpTransport(listeners[rank], rank, addresses, bytes(16), 1, b"secret")
        place = store if rank == 0 else (HERE, store.port)
        transport = CollectiveTransport(frames, open_gloo(place, HERE, rank, size, 1, 30.0), 20.0)
        try:
            return do(rank, transport, barrier)
        finally:
            transport.close()

    with ThreadPoolExecutor(size) as pool:
        return [one.result(timeout=60) for one in [pool.submit(worker, rank) for rank in range(size)]]


def slices(rank: int, size: int, attempt: int) -> Ask:
    """Two payloads to every other rank, of sizes of their own."""
    keys = [(to, Key(Kind.SLICE, attempt, rank, part)) for to in range(size) if to != rank for part in (to, to + size)]
    send = tuple(Parcel(to, key, bytes([rank + key.part]) * (1000 + rank)) for to, key in keys)
    want = {Key(Kind.SLICE, attempt, k, part): k for k in range(size) if k != rank for part in (rank, rank + size)}
    return Ask(send, want, "exchange", 20.0, None, {key: 1000 + k for key, k in want.items()})


@pytest.mark.parametrize("size", [2, 3])
def test_everything_arrives_and_is_counted(size: int) -> None:
    def do(rank: int, transport: CollectiveTransport, barrier: threading.Barrier) -> None:
        before = transport._frames.bytes_sent
        for attempt in range(3):
            got = transport.exchange(slices(rank, size, attempt))
            assert {k: bytes(v) for k, v in got.items()} == {
                key: bytes([k + key.part]) * (1000 + k) for key, k in slices(rank, size, attempt).want.items()
            }
        assert transport._sent == 3 * 2 * (size - 1) * (1000 + rank)
        assert transport._frames.bytes_sent - before < 1000, "it went by frames"
        barrier.wait()

    on_all(size, do)


def test_a_lost_peer_is_named() -> None:
    both = threading.Barrier(2, timeout=30)

    def do(rank: int, transport: CollectiveTransport, barrier: threading.Barrier) -> str:
        transport.exchange(slices(rank, 3, 0))
        barrier.wait()
        if rank == 2:
            return ""
        with pytest.raises(PeerLost) as lost:
            transport.exchange(slices(rank, 3, 1))
        both.wait()
        return str(lost.value)

    told = on_all(3, do)
    assert all("rank 2 at" in text and "is lost in phase 'exchange'" in text for text in told[:2])
