"""The in-memory exchange tells the truth about losses, errors, deadlocks and aliasing: protocol tests rely on it."""

from __future__ import annotations

import pytest

from elastic_dgc.errors import MessageError, PeerLost
from elastic_dgc.exchange.ask import Ask, Key, Kind, Parcel, Payload, Steps
from elastic_dgc.exchange.gather import gather_workers
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.memory import Deadlock, Killed, Loss, Network, run_each, run_together

SIZE = 4


def two_phases(rank: int, size: int = SIZE) -> Steps[list[bytes]]:
    members = Members.of(rank, size, size)
    seen: list[Payload] = []
    for attempt in range(2):
        for kind, phase in ((Kind.ROW, "vote"), (Kind.MESSAGE, "exchange")):
            own = f"{phase}{attempt}{rank}".encode()
            seen += yield from gather_workers(members, kind, attempt, own, phase=phase, deadline_s=1.0)
    return [bytes(one) for one in seen]


def group() -> list[Steps[list[bytes]]]:
    return [two_phases(rank) for rank in range(SIZE)]


@pytest.mark.parametrize("phase", ["vote", "exchange"])
@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize("reached", [0, 1, 2, 3, None])
@pytest.mark.parametrize("victim", range(SIZE))
def test_a_loss_strikes_where_it_is_told_and_ends_those_that_miss_something(
    phase: str, attempt: int, reached: int | None, victim: int
) -> None:
    network = Network([Loss(victim, phase, attempt, reached)])
    results = run_each(group(), network=network)
    assert isinstance(results[victim].error, Killed)
    others = [rank for rank in range(SIZE) if rank != victim]
    there = [s for s in network.sent if s.sender == victim and s.key.attempt == attempt]
    there = [s for s in there if s.key.kind == (Kind.ROW if phase == "vote" else Kind.MESSAGE)]
    reached_ranks = others if reached is None else others[:reached]
    assert [s.to for s in there] == reached_ranks
    last = phase == "exchange" and attempt == 1
    for rank in others:
        if last and rank in reached_ranks:
            assert len(results[rank].get()) == 4 * SIZE
        else:
            lost = results[rank].error
            assert isinstance(lost, PeerLost)
            assert lost.rank in {victim, *others} - {rank}
    assert all(isinstance(results[rank].error, PeerLost) for rank in others) or last


def test_the_survivors_may_go_on_after_a_loss() -> None:
    def tough(rank: int) -> Steps[str]:
        try:
            yield from two_phases(rank, 3)
        except PeerLost as lost:
            key = Key(Kind.CONTROL, 0, 0)
            other = ({0, 1, 2} - {rank, lost.rank}).pop()
            got = yield Ask((Parcel(other, key, b"still here"),), {key: other}, "flush")
            return bytes(got[key]).decode()
        return "undisturbed"

    results = run_each([two_phases(0, 3), tough(1), tough(2)], network=Network([Loss(0, "exchange", 0)]))
    assert isinstance(results[0].error, Killed)
    assert [results[1].value, results[2].value] == ["still here"] * 2


def test_a_workers_own_error_is_what_comes_out() -> None:
    def broken(rank: int) -> Steps[list[bytes]]:
        yield Ask((), {Key(Kind.ROW, 0, -1): 0}, "vote")
        raise ZeroDivisionError("mine")

    workers = [two_phases(0), broken(1), two_phases(2), two_phases(3)]
    with pytest.raises(ZeroDivisionError, match="mine"):
        run_together(workers)
    results = run_each([two_phases(0), broken(1), two_phases(2), two_phases(3)])
    assert "ZeroDivisionError: mine" in str(results[0].error)


def test_what_the_sent_hook_raises_ends_that_worker_only_after_its_parcels_are_out() -> None:
    def hook(rank: int, ask: Ask) -> None:
        if rank == 2 and ask.phase == "exchange":
            raise RuntimeError("injected")

    network = Network()
    results = run_each(group(), hook, network)
    assert isinstance(results[2].error, RuntimeError)
    assert network.bytes_sent(sender=2, kind=Kind.MESSAGE) > 0
    assert network.bytes_sent(sender=2, kind=Kind.MESSAGE) == 3 * len(b"exchange02")


def test_a_deadlock_names_who_waits_for_what() -> None:
    def returns(rank: int) -> Steps[None]:
        return None
        yield

    def waits(rank: int) -> Steps[None]:
        yield Ask((), {Key(Kind.SUM, 7, 3): 0}, "sums")

    with pytest.raises(
        Deadlock, match=r"rank 1 in phase 'sums' waits for SUM of virtual worker 3, attempt 7 from rank 0 .*returned"
    ):
        run_each([returns(0), waits(1)])


@pytest.mark.parametrize("when", ["before the next ask", "before returning"])
def test_changing_a_payload_too_early_is_found(when: str) -> None:
    def careless(rank: int) -> Steps[None]:
        payload = bytearray(b"abc")
        members = Members.of(rank, 2, 2)
        yield from gather_workers(members, Kind.ROW, 0, payload, phase="vote", deadline_s=1.0)
        payload[0] = 0
        if when == "before the next ask":
            yield from gather_workers(members, Kind.ROW, 1, b"", phase="vote", deadline_s=1.0)

    with pytest.raises(MessageError, match="changed ROW of rank"):
        run_together([careless(0), careless(1)])


def test_a_payload_may_be_reused_once_a_later_phase_is_through() -> None:
    def flips(rank: int) -> Steps[list[bytes]]:
        members = Members.of(rank, 2, 2)
        buffers = [bytearray(1), bytearray(1)]
        seen: list[Payload] = []
        for attempt in range(6):
            buffers[attempt % 2][0] = 10 * attempt + rank
            seen += yield from gather_workers(
                members, Kind.ROW, attempt, buffers[attempt % 2], phase="vote", deadline_s=1.0
            )
        return [bytes(one) for one in seen[1 - rank :: 2]]

    got = run_together([flips(0), flips(1)])
    assert got == [[bytes([10 * attempt + other]) for attempt in range(6)] for other in (1, 0)]


def test_the_same_key_twice_is_ignored_when_equal_and_an_error_when_not() -> None:
    key = Key(Kind.ROW, 0, 0)

    def sends(second: bytes) -> Steps[bytes]:
        yield Ask((Parcel(1, key, b"one"), Parcel(1, key, second)), {}, "vote")
        return b""

    def reads() -> Steps[bytes]:
        got = yield Ask((), {key: 0}, "vote")
        return bytes(got[key])

    assert run_together([sends(b"one"), reads()]) == [b"", b"one"]
    with pytest.raises(MessageError, match="twice"):
        run_together([sends(b"two"), reads()])


@pytest.mark.parametrize("to", [0, 2, -1])
def test_a_parcel_to_oneself_or_to_nobody_is_a_mistake(to: int) -> None:
    def wrong() -> Steps[None]:
        yield Ask((Parcel(to, Key(Kind.ROW, 0, 0), b""),), {}, "vote")

    def idle() -> Steps[None]:
        yield Ask((), {}, "vote")

    with pytest.raises(ValueError, match="sends to rank"):
        run_together([wrong(), idle()])
