"""The transport over real sockets: the same results as in memory, and every way in which a peer can fail it."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from transports import KEY, join, listen, mesh, ours, side_by_side

from elastic_dgc.errors import ElasticDGCError, MessageError, PeerLost
from elastic_dgc.exchange import connection, frame, tcp
from elastic_dgc.exchange.ask import Ask, Key, Kind, Parcel, Steps, drive
from elastic_dgc.exchange.gather import gather_virtual
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.memory import run_together
from elastic_dgc.exchange.tcp import TcpTransport

pytestmark = pytest.mark.processes


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


# ---- peers that fail


# ---- what is left behind


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
