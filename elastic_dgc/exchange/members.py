"""Who is in a view and who hosts what: the part of a view that the exchange needs."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_dgc.exchange.routes import Link, Route, Topology, choose


def assign(virtual_workers: int, workers: int) -> tuple[int, ...]:
    """The map from virtual workers to ranks: blocks of ceil(K/N) or floor(K/N) in order; ranks beyond K are spares."""
    if virtual_workers < 1 or workers < 1:
        raise ValueError(f"{virtual_workers} virtual workers on {workers} workers: both must be at least 1")
    base, extra = divmod(virtual_workers, workers)
    return tuple(rank for rank in range(workers) for _ in range(base + (rank < extra)))


@dataclass(frozen=True)
class Members:
    """One worker's sight of its view: its own rank, how many workers there are, and each virtual worker's host."""

    rank: int
    size: int
    hosts: tuple[int, ...]
    topology: Topology | None = None  # None: every worker is taken to be on a node of its own
    link: Link | None = None  # None: not measured, everything goes straight
    transport: Route | None = None  # what the user chose; None: by itself

    @staticmethod
    def of(rank: int, size: int, virtual_workers: int) -> Members:
        return Members(rank, size, assign(virtual_workers, size))

    @property
    def places(self) -> Topology:
        return self.topology or Topology(tuple(range(self.size)))

    def route(self, bytes_each: float) -> Route:
        """The way that payloads of so many bytes per virtual worker take: the same on every worker."""
        if self.transport is not None:
            return Route.TREE if self.transport is Route.TREE else Route.ALL
        hosted = -(-self.virtual_workers // self.size)
        return choose(self.places, self.link, hosted * bytes_each)

    @property
    def collectives(self) -> bool:
        """Whether whole dense steps go by a library's collectives: where those are there, and measured to be faster."""
        if self.link is None or not self.link.collectives_gain:
            return False
        return self.transport is Route.COLLECTIVES or (self.transport is None and self.link.collectives_gain > 1.1)

    @property
    def virtual_workers(self) -> int:
        return len(self.hosts)

    @property
    def hosted(self) -> tuple[int, ...]:
        return tuple(k for k, host in enumerate(self.hosts) if host == self.rank)

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.size) if rank != self.rank)
