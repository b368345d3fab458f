"""All-gather: everyone gets everything, in order, for every number of workers and virtual workers."""

from __future__ import annotations

import pytest

from elastic_dgc.exchange.ask import Kind, Steps
from elastic_dgc.exchange.gather import gather_virtual, gather_workers
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.memory import Network, run_together


def payload(k: int, attempt: int) -> bytes:
    return f"{attempt}:{k}".encode() * (k + 1)


def worker(members: Members, attempts: int) -> Steps[list[tuple[bytes, ...]]]:
    seen = []
    for attempt in range(attempts):
        own = {k: payload(k, attempt) for k in members.hosted}
        got = yield from gather_virtual(members, Kind.MESSAGE, attempt, own, phase="exchange", deadline_s=1.0)
        seen.append(tuple(bytes(one) for one in got))
    return seen


@pytest.mark.parametrize("size", range(1, 6))
@pytest.mark.parametrize("virtual_workers", range(1, 9))
@pytest.mark.parametrize("seed", [None, 0])
def test_everyone_gets_every_virtual_workers_payload_in_order(
    size: int, virtual_workers: int, seed: int | None
) -> None:
    attempts = 2
    network = Network()
    group = [worker(Members.of(rank, size, virtual_workers), attempts) for rank in range(size)]
    expected = [tuple(payload(k, attempt) for k in range(virtual_workers)) for attempt in range(attempts)]
    assert run_together(group, network=network, seed=seed) == [expected] * size
    # Each payload goes once to each of the others, and nothing else goes anywhere.
    whole = sum(len(one) for attempt in expected for one in attempt)
    assert network.bytes_sent() == whole * (size - 1)
    assert network.bytes_sent(kind=Kind.ROW) == 0


@pytest.mark.parametrize("size", range(1, 6))
def test_everyone_gets_every_workers_payload_by_rank(size: int) -> None:
    def one(rank: int) -> Steps[list[bytes]]:
        members = Members.of(rank, size, 1)
        first = yield from gather_workers(members, Kind.DIGEST, 0, b"a%d" % rank, phase="digest", deadline_s=1.0)
        again = yield from gather_workers(
            members, Kind.DIGEST, 0, b"b%d" % rank, phase="digest", deadline_s=1.0, part=1
        )
        return [bytes(got) for got in first + again]

    expected = [b"a%d" % rank for rank in range(size)] + [b"b%d" % rank for rank in range(size)]
    assert run_together([one(rank) for rank in range(size)]) == [expected] * size


def test_a_lost_peer_can_be_told_of_between_processes() -> None:
    import pickle

    from elastic_dgc.errors import PeerLost

    there = pickle.loads(pickle.dumps(PeerLost("rank 3 is lost", 3)))
    assert (str(there), there.rank) == ("rank 3 is lost", 3)
