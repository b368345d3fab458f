"""Workers, views, and who hosts which virtual worker. Values only: the coordinator decides, others read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from elastic_dgc.exchange.members import Members


@dataclass(frozen=True)
class Worker:
    """A process that Ray started. `uid` is of this process and never used again; `capacity`: how many virtual workers
    its memory holds."""

    uid: str
    node: str
    capacity: int = 1 << 30


class Tier(IntEnum):
    """Where an orphan's owned state comes from (DESIGN 6). `INITIAL`: the run has not begun, zeros are exact.
    `CHECKPOINT`: a durable one that was written at just this attempt."""

    KEEPER = 0
    BUDDY = 1
    STALE = 2
    ZERO = 3
    INITIAL = 4
    CHECKPOINT = 5

    @property
    def exact(self) -> bool:
        return self not in (Tier.STALE, Tier.ZERO)


@dataclass(frozen=True)
class Source:
    """One place an orphan's state may come from. `node`: whose keeper has it ('' for storage). `tag`: its attempt
    count. `rolling`: it is a buddy's rolling snapshot.

    A keeper's copy with a `tag` below `closed_at` is brought forward by the log that everybody has; one that is one
    behind is what an owner leaves that died before its flip, or that missed a skip."""

    tier: Tier
    node: str = ""
    tag: int = 0
    rolling: bool = False


@dataclass(frozen=True)
class View:
    """A numbered set of workers and the map from virtual workers to them. Written by the coordinator alone.

    `hosts`: rank of each virtual worker's host. `closed_at`: attempts decided when the view before it was closed;
    everybody begins there. `sources`: for each orphan, places to take its state from, best first. `ending`: save and
    stop, that is all this view is for. `stage`: how many of the things that are done at this boundary before the next
    attempt (evaluation, digest, checkpoint) everyone has done.
    """

    number: int
    workers: tuple[Worker, ...]
    hosts: tuple[int, ...]
    closed_at: int
    sources: Mapping[int, tuple[Source, ...]] = field(default_factory=dict)
    ending: bool = False
    stage: int = 0

    def __post_init__(self) -> None:
        if any(not 0 <= host < len(self.workers) for host in self.hosts):
            raise ValueError(f"view {self.number}: a virtual worker has no host among {len(self.workers)} workers")
        if len({one.uid for one in self.workers}) != len(self.workers):
            raise ValueError(f"view {self.number}: a worker stands there twice")

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(one.uid for one in self.workers)

    def rank(self, uid: str) -> int:
        """Raises ValueError for a worker that is not in this view."""
        return self.uids.index(uid)

    def members(self, uid: str) -> Members:
        """This worker's sight of the view, as the exchange needs it."""
        return Members(self.rank(uid), len(self.workers), self.hosts)

    def hosted(self, uid: str) -> tuple[int, ...]:
        rank = self.rank(uid)
        return tuple(k for k, host in enumerate(self.hosts) if host == rank)

    def buddy(self, virtual_worker: int) -> str | None:
        """The node whose keeper has this virtual worker's rolling snapshot: the next one in the order of nodes; None
        where all workers are on one node."""
        nodes = sorted({one.node for one in self.workers})
        here = self.workers[self.hosts[virtual_worker]].node
        return nodes[(nodes.index(here) + 1) % len(nodes)] if len(nodes) > 1 else None


def rehost(
    virtual_workers: int, workers: Sequence[Worker], before: Mapping[int, str], leaving: frozenset[str] = frozenset()
) -> tuple[int, ...] | None:
    """The rank of each virtual worker's host: ceil(K/N) or floor(K/N) each where capacity allows, spares beyond K, and
    as few moves as that takes. `before`: the host of each virtual worker that has one. None: they do not fit.

    A pure function, so that a coordinator that comes back decides the same.
    """
    able = [rank for rank, one in enumerate(workers) if one.uid not in leaving]
    room = {rank: min(workers[rank].capacity, virtual_workers) for rank in able}
    if sum(room.values()) < virtual_workers:
        return None
    load = dict.fromkeys(able, 0)
    quota = dict.fromkeys(able, 0)
    rank_of = {workers[rank].uid: rank for rank in able}
    held = {rank: [k for k in range(virtual_workers) if rank_of.get(before.get(k, "")) == rank] for rank in able}
    # Who holds most gets the larger shares, so that the fewest move; ties to the lowest rank.
    for _ in range(virtual_workers):
        free = [rank for rank in able if quota[rank] < room[rank]]
        best = min(free, key=lambda rank: (quota[rank], -len(held[rank]), rank))
        quota[best] += 1
    hosts: dict[int, int] = {}
    for rank in able:
        for k in held[rank][: quota[rank]]:
            hosts[k] = rank
            load[rank] += 1
    for k in range(virtual_workers):
        if k not in hosts:
            rank = min((r for r in able if load[r] < quota[r]), key=lambda r: (load[r], r))
            hosts[k] = rank
            load[rank] += 1
    return tuple(hosts[k] for k in range(virtual_workers))
