"""Every way in which a peer that was let in can fail: death, damage, silence, deafness."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from transports import KEY, RUN, SECRET, join, listen, mesh

from elastic_dgc.errors import PeerLost
from elastic_dgc.exchange import frame, handshake
from elastic_dgc.exchange.ask import Key, Kind, Parcel
from elastic_dgc.exchange.tcp import TcpTransport

pytestmark = pytest.mark.processes


def half_a_peer(stack: ExitStack, silence_deadline_s: float = 60.0) -> tuple[TcpTransport, socket.socket]:
    """Rank 0's transport, and the bare authenticated socket of its only peer."""
    listeners = listen(stack, 2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, listeners, 0, silence_deadline_s=silence_deadline_s)
        sock = stack.enter_context(socket.create_connection(listeners[0].address, timeout=20.0))
        handshake.call(sock, handshake.Identity(RUN, 2, SECRET, 1), 0, time.monotonic() + 20.0)
        stack.callback(first.result().close)
        stack.callback(sock.close)
        return first.result(), sock


def whole_frame(payload: bytes, view: int = 2, sender: int = 1) -> bytes:
    return frame.pack_header(RUN, view, KEY, sender, len(payload), frame.checksum(payload)) + payload


@pytest.mark.parametrize("cut", [0, 10, frame.HEADER_BYTES, frame.HEADER_BYTES + 3])
def test_a_peer_that_dies_is_noticed_at_once_wherever_it_was(stack: ExitStack, cut: int) -> None:
    one, sock = half_a_peer(stack)
    sock.sendall(whole_frame(b"payload")[:cut])
    sock.close()
    with pytest.raises(PeerLost, match=r"rank 1 .*connection .*ended") as lost:
        one.collect({KEY: 1}, 60.0, "exchange")
    assert lost.value.rank == 1
    assert list(one.lost) == [1]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (whole_frame(b"payload")[:-1] + b"!", "checksum"),
        (whole_frame(b"payload", view=1), "view 1"),
        (whole_frame(b"payload", sender=0), "rank 0"),
        (b"\0" * frame.HEADER_BYTES, "not one of our peers"),
    ],
)
def test_a_wrong_frame_ends_the_connection(stack: ExitStack, data: bytes, reason: str) -> None:
    one, sock = half_a_peer(stack)
    sock.sendall(data)
    with pytest.raises(PeerLost, match=reason):
        one.collect({KEY: 1}, 60.0, "exchange")
    while sock.recv(4096):
        pass  # pings; then the end, or this would run into the socket's timeout


def test_a_silent_peer_is_noticed(stack: ExitStack) -> None:
    one, _ = half_a_peer(stack, silence_deadline_s=0.2)
    with pytest.raises(PeerLost, match=r"rank 1 .*silent for 0\.2 s"):
        one.collect({KEY: 1}, 60.0, "exchange")


def test_pings_keep_an_idle_connection_alive(stack: ExitStack) -> None:
    one, two = mesh(stack, 2, silence_deadline_s=1.0)
    with pytest.raises(PeerLost, match="its connection is alive"):
        one.collect({KEY: 1}, 1.5, "exchange")
    assert one.lost == two.lost == {}
    assert two.bytes_received >= 3 * frame.HEADER_BYTES


def test_a_peer_that_reads_nothing_is_noticed(stack: ExitStack) -> None:
    one, sock = half_a_peer(stack, silence_deadline_s=0.5)
    stop = threading.Event()

    def ping() -> None:
        header = frame.pack_header(RUN, 2, Key(Kind.PING, 0, 0), 1, 0, 0)
        while not stop.wait(0.05) and not one.lost:
            sock.sendall(header)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(ping)
        try:
            one.send([Parcel(1, KEY, bytes(64 << 20))])
            with pytest.raises(PeerLost, match="accepted no data"):
                one.collect({KEY: 1}, 60.0, "exchange")
        finally:
            stop.set()
