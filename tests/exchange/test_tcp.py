"""The transport over real sockets: the same results as in memory, and every way in which a peer can fail it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import pytest

from elastic_dgc.errors import ElasticDGCError, MessageError, PeerLost, UsageError
from elastic_dgc.exchange import connection, frame, handshake, tcp
from elastic_dgc.exchange.ask import Ask, Key, Kind, Parcel, Steps, drive
from elastic_dgc.exchange.gather import gather_virtual
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.memory import run_together
from elastic_dgc.exchange.tcp import Listener, TcpTransport

pytestmark = pytest.mark.processes

T = TypeVar("T")
RUN = b"run of the tests"
SECRET = b"nobody knows this"
KEY = Key(Kind.MESSAGE, 5, 0)
Join = Callable[..., TcpTransport]


def side_by_side(tasks: Sequence[Callable[[], T]]) -> list[T]:
    with ThreadPoolExecutor(max(1, len(tasks))) as pool:
        return [future.result(timeout=60) for future in [pool.submit(task) for task in tasks]]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


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


def rounds(rank: int, size: int, virtual_workers: int) -> Steps[list[bytes]]:
    members = Members.of(rank, size, virtual_workers)
    seen: list[bytes] = []
    for attempt in range(5):
        own = {k: os.fsencode(f"{attempt}.{k}") * 1000 * k for k in members.hosted}
        got = yield from gather_virtual(members, Kind.MESSAGE, attempt, own, phase="exchange", deadline_s=20.0)
        seen += [bytes(one) for one in got]
    return seen


@pytest.mark.parametrize(("size", "virtual_workers"), [(1, 2), (2, 4), (3, 8), (4, 3)])
def test_tcp_delivers_what_memory_delivers(stack: ExitStack, size: int, virtual_workers: int) -> None:
    transports = mesh(stack, size)
    over_tcp = side_by_side(
        [lambda t=t: drive(rounds(t.rank, size, virtual_workers), t) for t in transports]  # type: ignore[misc]
    )
    assert over_tcp == run_together([rounds(rank, size, virtual_workers) for rank in range(size)])
    assert all(not transport.lost for transport in transports)
    assert sum(transport.refused for transport in transports) == 0


def test_every_byte_is_counted_on_both_sides(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_INTERVAL_S", 100.0)
    one, two = mesh(stack, 2, silence_deadline_s=500.0)
    one.send([Parcel(1, KEY, b"x" * 1000)])
    two.collect({KEY: 0}, 20.0, "exchange")
    assert one.bytes_sent == two.bytes_received == 1000 + frame.HEADER_BYTES
    assert two.bytes_sent == one.bytes_received == 0


def test_large_payloads_both_ways_at_once(stack: ExitStack) -> None:
    one, two = mesh(stack, 2)
    big = {rank: os.urandom(1 << 20) * 20 for rank in (0, 1)}

    def swap(transport: TcpTransport) -> bool:
        other = 1 - transport.rank
        keys = [Key(Kind.SLICE, 0, rank) for rank in (0, 1)]
        ask = Ask((Parcel(other, keys[transport.rank], big[transport.rank]),), {keys[other]: other}, "sums", 30.0)
        transport.send(ask.send)
        return transport.collect(ask.want, ask.deadline_s, ask.phase)[keys[other]] == big[other]

    assert side_by_side([lambda: swap(one), lambda: swap(two)]) == [True, True]


def test_what_was_sent_before_closing_arrives_and_what_is_wanted_after_it_is_lost_at_once(stack: ExitStack) -> None:
    one, two, three = mesh(stack, 3)
    payload = os.urandom(1 << 20) * 8
    one.send([Parcel(1, KEY, payload), Parcel(2, KEY, payload)])
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < tcp.CLOSE_DEADLINE_S, "it must not wait for those that go on"
    for transport in (two, three):
        assert transport.collect({KEY: 0}, 20.0, "exchange")[KEY] == payload
        began = time.monotonic()
        with pytest.raises(PeerLost, match=r"rank 0 at 127\.0\.0\.1:\d+ is lost in phase 'vote', ROW .*left") as lost:
            transport.collect({Key(Kind.ROW, 6, 0): 0}, 60.0, "vote")
        assert lost.value.rank == 0
        assert time.monotonic() - began < 20.0
    two.send([Parcel(2, KEY, b"the others go on"), Parcel(0, KEY, b"into the void")])
    assert three.collect({KEY: 1}, 20.0, "exchange")[KEY] == b"the others go on"


def test_a_wait_of_another_thread_ends_when_the_transport_is_closed(stack: ExitStack) -> None:
    one, _ = mesh(stack, 2)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(one.collect, {KEY: 1}, 60.0, "vote")
        one.close()
        with pytest.raises(ElasticDGCError, match="closed"):
            waits.result(timeout=20.0)


def test_the_deadline_names_what_is_missing(stack: ExitStack) -> None:
    one, _ = mesh(stack, 2)
    with pytest.raises(
        PeerLost, match=r"rank 1 .* deadline of 0\.05 s .* MESSAGE of virtual worker 0, attempt 5"
    ) as lost:
        one.collect({KEY: 1}, 0.05, "exchange")
    assert lost.value.rank == 1


def test_forgetting_frees_older_attempts_only(stack: ExitStack) -> None:
    one, two = mesh(stack, 2)
    old, new = Key(Kind.ROW, 4, 0), Key(Kind.ROW, 5, 0)
    one.send([Parcel(1, old, b"old"), Parcel(1, new, b"new")])
    assert two.collect({old: 0, new: 0}, 20.0, "vote") == {old: b"old", new: b"new"}
    two.forget(5)
    assert two.collect({new: 0}, 20.0, "vote") == {new: b"new"}
    with pytest.raises(PeerLost):
        two.collect({old: 0}, 0.01, "vote")


def test_a_second_frame_with_the_same_key_must_be_identical(stack: ExitStack) -> None:
    one, two = mesh(stack, 2)
    last = Key(Kind.ROW, 6, 0)
    one.send([Parcel(1, KEY, b"same"), Parcel(1, KEY, b"same"), Parcel(1, last, b"")])
    assert two.collect({KEY: 0, last: 0}, 20.0, "exchange")[KEY] == b"same"
    one.send([Parcel(1, KEY, b"other")])
    with pytest.raises(MessageError, match=r"rank 0 .* twice"):
        two.collect({Key(Kind.ROW, 7, 0): 0}, 20.0, "vote")


@pytest.mark.parametrize(("to", "kind"), [(0, Kind.ROW), (2, Kind.ROW), (-1, Kind.ROW), (1, Kind.PING), (1, Kind.BYE)])
def test_wrong_parcels_are_a_mistake_of_the_caller(stack: ExitStack, to: int, kind: Kind) -> None:
    one, _ = mesh(stack, 2)
    with pytest.raises(ValueError, match=r"sends to rank|own kind"):
        one.send([Parcel(to, Key(kind, 0, 0), b"")])


# ---- strangers


def knock(listener: Listener, data: bytes) -> bytes:
    """Say something to a listener, and return its answer: it must end the connection by itself."""
    with socket.create_connection(listener.address, timeout=20.0) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while chunk := sock.recv(4096):
                answer += chunk
        except ConnectionResetError:
            pass  # it did not even read to the end
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


# ---- peers that fail


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


# ---- what is left behind


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dgc-")]


def test_nothing_is_left_after_close() -> None:
    def sockets() -> int:
        names = []
        for link in os.listdir("/proc/self/fd"):
            try:
                names.append(os.readlink(f"/proc/self/fd/{link}"))
            except FileNotFoundError:
                continue  # the descriptor of this very listing
        return sum(name.startswith("socket:") for name in names)

    before = sockets()
    with ExitStack() as stack:
        mesh(stack, 4)
        assert sockets() > before
        assert ours()
        began = time.monotonic()
    assert time.monotonic() - began < 4.0
    assert (sockets(), ours()) == (before, [])


def test_a_forked_child_does_not_keep_connections_open(stack: ExitStack) -> None:
    one, two = mesh(stack, 2)
    inherited = [c._socket.fileno() for t in (one, two) for c in t._connections.values()]
    child = os.fork()
    if child == 0:
        still_open = 0
        for number in inherited:
            try:
                os.fstat(number)
                still_open += 1
            except OSError:
                continue
        os._exit(still_open)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    two.send([Parcel(0, KEY, b"the parent goes on")])
    assert one.collect({KEY: 1}, 20.0, "exchange")[KEY] == b"the parent goes on"


def test_the_next_view_can_use_the_same_listeners(stack: ExitStack) -> None:
    listeners = listen(stack, 2)
    for view in (1, 2):
        pair = side_by_side([lambda r=r: join(listeners, r, view=view) for r in (0, 1)])  # type: ignore[misc]  # noqa: B023
        if view == 1:
            with pytest.raises(RuntimeError, match="another transport"):
                join(listeners, 0)
        side_by_side([transport.close for transport in pair])


# ---- errors on the way in


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
