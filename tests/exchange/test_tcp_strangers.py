"""Who is let in: noise, strangers, older views, second workers of a rank, peers that do not come."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from transports import KEY, RUN, SECRET, join, listen, mesh, ours

from elastic_dgc.errors import PeerLost, UsageError
from elastic_dgc.exchange import frame, handshake
from elastic_dgc.exchange.ask import Parcel
from elastic_dgc.exchange.tcp import Listener, TcpTransport

pytestmark = pytest.mark.processes


Join = Callable[..., TcpTransport]


def knock(listener: Listener, data: bytes) -> bytes:
    """Say something to a listener, and return its answer: it must end the connection by itself."""
    with socket.create_connection(listener.address, timeout=20.0) as sock:
        sock.sendall(data)
        answer = b""
        try:
            sock.shutdown(socket.SHUT_WR)
            while chunk := sock.recv(4096):
                answer += chunk
        except OSError as error:  # it did not even read to the end, and may have hung up before we were done
            if error.errno not in (errno.ECONNRESET, errno.ENOTCONN):
                raise
        return answer


def test_noise_and_scanners_disturb_nobody(stack: ExitStack) -> None:
    listeners = listen(stack, 2)
    silent = stack.enter_context(socket.create_connection(listeners[0].address, timeout=20.0))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, listeners, 0)
        noise = [b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(200), b"eDGH", b"eDGH" + os.urandom(200)]
        # Noise of our own kind is refused in words, the rest is not worth any.
        answers = [knock(listeners[0], data) for data in noise]
        second = join(listeners, 1)
        stack.callback(second.close)
        stack.callback(first.result().close)
    assert answers[:4] == [b""] * 4
    second.send([Parcel(0, KEY, b"works")])
    assert first.result().collect({KEY: 1}, 20.0, "exchange")[KEY] == b"works"
    assert first.result().refused == len(noise)
    silent.close()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"secret": b"a guess"}, "secret"),
        ({"run": b"another run 1234"}, "another run"),
        ({"view": 1}, "older view"),
        ({"view": 3}, "newer view"),
        ({"rank": 0}, "rank"),
        ({"rank": 2}, "rank"),
    ],
)
def test_a_stranger_is_refused_and_the_group_still_works(
    stack: ExitStack, other: dict[str, object], reason: str
) -> None:
    listeners = listen(stack, 2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, listeners, 0)
        values: dict[str, object] = {"run": RUN, "view": 2, "secret": SECRET, "rank": 1, **other}
        with socket.create_connection(listeners[0].address, timeout=20.0) as sock:
            stranger = handshake.Identity(**values)  # type: ignore[arg-type]
            with pytest.raises(handshake.Refused, match=reason):
                handshake.call(sock, stranger, 0, time.monotonic() + 20.0)
        second = join(listeners, 1)
        stack.callback(second.close)
        stack.callback(first.result().close)
    first.result().send([Parcel(1, KEY, b"works")])
    assert second.collect({KEY: 0}, 20.0, "exchange")[KEY] == b"works"


def test_a_worker_of_an_older_view_is_told_so(stack: ExitStack) -> None:
    listeners = listen(stack, 2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, listeners, 0, view=7)
        with pytest.raises(
            PeerLost, match=r"rank 0 .* could not be reached .*'it is of an older view' \(it is in view 7"
        ):
            join(listeners, 1, connect_deadline_s=1.0)
        second = join(listeners, 1, view=7)
        stack.callback(second.close)
        stack.callback(first.result().close)
        assert first.result().refused >= 1


def test_a_caller_that_cannot_prove_itself_is_refused(stack: ExitStack) -> None:
    """It knows run, view and rank, and believes any host, but it does not know the secret."""
    listeners = listen(stack, 2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, listeners, 0)
        liar = handshake.Identity(RUN, 2, b"a guess", 1)
        until = time.monotonic() + 20.0
        with socket.create_connection(listeners[0].address, timeout=20.0) as sock:
            sock.sendall(handshake._HELLO.pack(b"eDGH", frame.VERSION, RUN, 2, 1, 0, bytes(32)))
            nonce, _ = handshake._read_answer(sock, liar, until)
            sock.sendall(liar.proof(b"caller", 1, 0, bytes(32) + nonce))
            with pytest.raises(handshake.Refused, match="secret"):
                handshake._read_answer(sock, liar, until)
            assert sock.recv(1) == b""
        second = join(listeners, 1)
        stack.callback(second.close)
        stack.callback(first.result().close)
        assert first.result().refused == 1


def test_a_proof_cannot_be_used_in_another_place() -> None:
    own = handshake.Identity(RUN, 2, SECRET, 1)
    nonces = bytes(64)
    proofs = [
        own.proof(b"caller", 1, 0, nonces),
        own.proof(b"host", 1, 0, nonces),
        own.proof(b"caller", 2, 0, nonces),
        own.proof(b"caller", 1, 2, nonces),
        own.proof(b"caller", 1, 0, bytes(63) + b"1"),
        handshake.Identity(RUN, 3, SECRET, 1).proof(b"caller", 1, 0, nonces),
        handshake.Identity(RUN[::-1], 2, SECRET, 1).proof(b"caller", 1, 0, nonces),
        handshake.Identity(RUN, 2, SECRET + b"1", 1).proof(b"caller", 1, 0, nonces),
    ]
    assert len(set(proofs)) == len(proofs)


def test_a_second_worker_of_the_same_rank_is_refused(stack: ExitStack) -> None:
    one, two = mesh(stack, 2)
    with socket.create_connection(one._addresses[0], timeout=20.0) as sock:
        twin = handshake.Identity(RUN, 2, SECRET, 1)
        with pytest.raises(handshake.Refused, match="connected already"):
            handshake.call(sock, twin, 0, time.monotonic() + 20.0)
        assert sock.recv(1) == b""
    assert one.refused == 1
    two.send([Parcel(0, KEY, b"the first one stays")])
    assert one.collect({KEY: 1}, 20.0, "exchange")[KEY] == b"the first one stays"


def test_a_peer_that_never_calls_is_named(stack: ExitStack) -> None:
    listeners = listen(stack, 2)
    with pytest.raises(
        PeerLost, match=r"rank 1 at .* did not connect to 127\.0\.0\.1:\d+ within 0\.1 s.*firewall"
    ) as lost:
        join(listeners, 0, connect_deadline_s=0.1)
    assert lost.value.rank == 1


def test_an_address_in_use_is_one_clear_line() -> None:
    with (
        Listener("127.0.0.1") as first,
        pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*in use.*; choose another port"),
    ):
        Listener(*first.address)


def test_a_peer_that_is_not_there_is_named_with_its_address(stack: ExitStack) -> None:
    gone, own = listen(stack, 2)
    gone.close()
    with pytest.raises(
        PeerLost, match=r"rank 0 at 127\.0\.0\.1:\d+ could not be reached within 0\.3 s.*firewall"
    ) as lost:
        join([gone, own], 1, connect_deadline_s=0.3)
    assert lost.value.rank == 0
    assert ours() == []


@pytest.mark.parametrize("other", [{"run": b"short"}, {"secret": b""}, {"view": -1}, {"silence_deadline_s": 0.0}])
def test_impossible_arguments(stack: ExitStack, other: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|above 0"):
        join(listen(stack, 1), 0, **other)
