"""Who can reach whom, how long it takes, and what gets lost. Letters between two endpoints stay in order, as on TCP."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Protocol

from elastic_dgc.simulation.clock import Clock

LATENCY_S = (0.0002, 0.002)
CLOSED_S = 0.001  # until a peer sees that a connection ended
UNANSWERED_S = 8.0  # until a connection whose letters do not arrive is taken to be broken

Pair = tuple[str, str]


class Endpoint(Protocol):
    """A process that letters can be sent to."""

    node: str
    alive: bool

    def hear(self, sender: str, letter: object) -> None: ...

    def closed(self, peer: str) -> None: ...


class Network:
    """Between endpoints by address. A node that is down says nothing; a process that ended closes its connections. What
    is sent into a cut arrives when the cut is over, unless the connection is taken to be broken before."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.endpoints: dict[str, Endpoint] = {}
        self.down: set[str] = set()  # nodes
        self.cut: dict[Pair, int] = defaultdict(int)  # directed, between nodes: how many faults cut it
        self._connection: dict[Pair, int] = defaultdict(int)  # which one, between two endpoints
        self._busy_until: dict[Pair, float] = defaultdict(float)
        self._held: dict[Pair, list[object]] = defaultdict(list)  # sent into a cut

    def passes(self, sender: str, to: str) -> bool:
        """Whether something sent now would arrive now."""
        here, there = self.endpoints.get(sender), self.endpoints.get(to)
        if here is None or there is None or here.node in self.down or there.node in self.down:
            return False
        return not self.cut[here.node, there.node]

    def send(self, sender: str, to: str, letter: object) -> None:
        """On its way; it may never arrive."""
        here = self.endpoints.get(sender)
        if here is None or here.node in self.down:
            return
        pair = (sender, to)
        arrival = max(self.clock.now + self.clock.rng.uniform(*LATENCY_S), self._busy_until[pair] + 1e-6)
        self._busy_until[pair] = arrival
        self.clock.after(arrival - self.clock.now, partial(self._deliver, sender, to, letter, self._connection[pair]))

    def _deliver(self, sender: str, to: str, letter: object, connection: int) -> None:
        pair, here, there = (sender, to), self.endpoints.get(sender), self.endpoints.get(to)
        if there is None or not there.alive or there.node in self.down or self._connection[pair] != connection:
            return
        if here is not None and (self.cut[here.node, there.node] or self._held[pair]):
            if not self._held[pair]:
                self.clock.after(UNANSWERED_S, partial(self._unanswered, sender, to, connection))
            self._held[pair].append(letter)
            return
        there.hear(sender, letter)

    def _unanswered(self, sender: str, to: str, connection: int) -> None:
        if self._connection[sender, to] == connection and self._held[sender, to]:
            self.drop(sender, to)

    def drop(self, one: str, other: str) -> None:
        """Their connection breaks: what is on its way is lost, and what is sent until both ends see it; the next letter
        makes a new one."""
        for here, there in ((one, other), (other, one)):
            self._connection[here, there] += 1
            self._held[here, there].clear()
            self.clock.after(CLOSED_S, partial(self._seen, here, there))

    def _seen(self, here: str, there: str) -> None:
        self._connection[here, there] += 1
        self._closed(here, there)

    def cut_off(self, pairs: set[Pair], lasts_s: float) -> None:
        """Nothing passes between these nodes, each pair in its direction, for so long."""
        for pair in pairs:
            self.cut[pair] += 1
        self.clock.after(lasts_s, partial(self._mended, pairs))

    def _mended(self, pairs: set[Pair]) -> None:
        for pair in pairs:
            self.cut[pair] -= 1
        for sender, to in [pair for pair, letters in self._held.items() if letters]:
            if self.passes(sender, to):
                late, self._held[sender, to] = self._held[sender, to], []
                for letter in late:
                    self.send(sender, to, letter)

    def ended(self, address: str) -> None:
        """A process ended; its node is up: whoever can be reached sees its connections close."""
        for other in list(self.endpoints):
            if other != address and self.passes(address, other):
                self.clock.after(CLOSED_S, partial(self._closed, other, address))

    def _closed(self, at: str, peer: str) -> None:
        endpoint = self.endpoints.get(at)
        if endpoint is not None and endpoint.alive and endpoint.node not in self.down:
            endpoint.closed(peer)
