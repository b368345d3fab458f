"""How fast the link is: a ring of small frames, then of large ones, before a view begins its work."""

from __future__ import annotations

import json
from collections.abc import Callable

from elastic_dgc.exchange.ask import Ask, Key, Kind, Parcel, Payload, Steps, parcels
from elastic_dgc.exchange.gather import gather_workers
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.routes import Link, Speed, Topology

SMALL_ROUNDS, LARGE_ROUNDS = 5, 2
LARGE_BYTES = 1 << 20  # 0.08 s at 100 Mbit/s


def measure_link(
    members: Members,
    topology: Topology,
    attempt: int,
    clock: Callable[[], float],
    deadline_s: float,
    library: bool,
    large_bytes: int = LARGE_BYTES,
) -> Steps[Link | None]:
    """Measure, and agree: the same link on every worker; None where there is one worker. Entered by all of a view.

    Each worker times what it sends to the next rank. Between nodes and within one the slowest pair counts: an exchange
    is over when the last worker has everything. `clock` gives seconds. `library`: the transport has collectives, which
    are timed against frames, everyone to everyone. `large_bytes`: of a large frame, about what a step may send.
    """
    size, rank = members.size, members.rank
    if size == 1:
        return None
    after, before = (rank + 1) % size, (rank - 1) % size
    seconds: dict[int, list[float]] = {1: [], large_bytes: []}
    for part in range(SMALL_ROUNDS + LARGE_ROUNDS):
        length = 1 if part < SMALL_ROUNDS else large_bytes
        send = (Parcel(after, Key(Kind.PROBE, attempt, -1 - rank, part), bytes(length)),)
        start = clock()
        yield Ask(send, {Key(Kind.PROBE, attempt, -1 - before, part): before}, "measuring the link", deadline_s)
        seconds[length].append(clock() - start)
    ways: dict[bool, list[float]] = {False: [], True: []}
    payload: Payload = bytearray(large_bytes)
    for part in range(2 * LARGE_ROUNDS if library else 0):
        by_library, number = bool(part % 2), SMALL_ROUNDS + LARGE_ROUNDS + part
        mine = Key(Kind.PROBE, attempt, -1 - rank, number)
        want = {Key(Kind.PROBE, attempt, -1 - other, number): other for other in members.others}
        sizes = dict.fromkeys(want, large_bytes) if by_library else None
        start = clock()
        yield Ask(parcels(members.others, mine, payload), want, "measuring the link", deadline_s, None, sizes)
        ways[by_library].append(clock() - start)
    latency_s = max(min(seconds[1]), 1e-6)
    own = [latency_s, large_bytes / max(min(seconds[large_bytes]) - latency_s, 1e-6)]
    own += [min(ways[False]), max(min(ways[True]), 1e-6)] if library else [0.0, 1.0]
    rows = yield from gather_workers(
        members,
        Kind.PROBE,
        attempt,
        json.dumps(own).encode(),
        phase="measuring the link",
        deadline_s=deadline_s,
        part=-1,
    )
    # what rank r timed came from the rank before it
    told = [json.loads(bytes(row)) for row in rows]
    speeds = [Speed(*one[:2]) for one in told]
    gain = max(one[2] for one in told) / max(one[3] for one in told)
    across = [one for r, one in enumerate(speeds) if topology.nodes[r] != topology.nodes[r - 1]]
    within = [one for r, one in enumerate(speeds) if topology.nodes[r] == topology.nodes[r - 1]]
    return Link(_slowest(across), _slowest(within), gain)


def _slowest(speeds: list[Speed]) -> Speed | None:
    if not speeds:
        return None
    return Speed(max(one.latency_s for one in speeds), min(one.bytes_per_s for one in speeds))
