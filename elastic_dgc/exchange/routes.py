"""Which way a payload of every worker takes to every other: straight, or over one worker of each node.

`all-to-all`: everyone sends to everyone. `tree`: the workers of a node hand theirs to the node's first worker; those
exchange bundles in ceil(log2(nodes)) rounds (Bruck et al., IEEE TPDS 1997) and hand down what they got. A bundle so
crosses to each other node once, not once for each of its workers, and a worker sends few frames where all-to-all sends
N - 1. Whole dense steps may go by a library's `collectives`, see there. Which is faster depends on N, bytes and the
link, so it is computed from what was measured. What arrives is the same either way, and the sum is taken in the order
of virtual workers: no route changes a bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Route(Enum):
    """How payloads travel."""

    ALL = "all-to-all"
    TREE = "tree"
    COLLECTIVES = "collectives"  # of a library, for whole dense steps; all else goes straight


@dataclass(frozen=True)
class Speed:
    """Measured between two workers: seconds one way for a small frame, and bytes per second."""

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Link:
    """What was measured when the view began, and agreed on by everyone. `network`: between nodes, None where all
    workers are on one; `local`: between the workers of a node, None where no node has two."""

    network: Speed | None
    local: Speed | None
    collectives_gain: float = 0.0  # how much faster gloo moved large payloads than frames; 0: not there

    @property
    def slowest(self) -> Speed:
        """The speed that an exchange between all workers runs at."""
        speed = self.network or self.local
        assert speed is not None
        return speed


@dataclass(frozen=True)
class Topology:
    """The nodes of a view's workers: `nodes` has one number per rank, equal for workers of one node."""

    nodes: tuple[int, ...]

    @staticmethod
    def of(hosts: tuple[str, ...]) -> Topology:
        """From each rank's host name."""
        names = list(dict.fromkeys(hosts))
        return Topology(tuple(names.index(host) for host in hosts))

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first rank of every node, in order of first appearance."""
        return tuple(self.nodes.index(node) for node in dict.fromkeys(self.nodes))

    def leader_of(self, rank: int) -> int:
        return self.nodes.index(self.nodes[rank])

    def followers(self, rank: int) -> tuple[int, ...]:
        """The other ranks on a leader's node."""
        return tuple(r for r, node in enumerate(self.nodes) if node == self.nodes[rank] and r != rank)

    @property
    def widest(self) -> int:
        """Workers on the node that has most."""
        return max(self.nodes.count(node) for node in set(self.nodes))


FRAME_S = 60e-6  # processor time to send and receive one frame: measured on a 2 GHz core


def predict(route: Route, topology: Topology, link: Link, bytes_each: float) -> float:
    """Seconds until everyone has everyone's `bytes_each`, by a model with latency, bandwidth and a cost per frame."""
    size, widest, nodes = len(topology.nodes), topology.widest, len(topology.leaders)
    network, local = link.network or link.slowest, link.local or link.slowest
    inside = widest - 1
    if route is Route.ALL:
        across = widest * (size - widest) * bytes_each / network.bytes_per_s  # they share the node's line
        within = inside * bytes_each / local.bytes_per_s
        return (
            max(network.latency_s * (nodes > 1), local.latency_s * (inside > 0))
            + across
            + within
            + (2 * FRAME_S * (size - 1))
        )
    rounds = math.ceil(math.log2(nodes)) if nodes > 1 else 0
    across = rounds * (network.latency_s + 2 * FRAME_S) + (nodes - 1) * widest * bytes_each / network.bytes_per_s
    up_and_down = 2 * (local.latency_s + FRAME_S * inside) + inside * (size + 1) * bytes_each / local.bytes_per_s
    return across + (up_and_down if inside else 0.0)


def choose(topology: Topology, link: Link | None, bytes_each: float) -> Route:
    """The faster route: a pure function of what everyone agreed on, so everyone takes the same (R5). A tree must
    promise a tenth, for the model is not that good."""
    if link is None or len(topology.nodes) < 3:
        return Route.ALL
    straight = predict(Route.ALL, topology, link, bytes_each)
    return Route.TREE if predict(Route.TREE, topology, link, bytes_each) < 0.9 * straight else Route.ALL


def dense_exchange_s(topology: Topology, link: Link, virtual_workers: int, numel: int) -> float:
    """What an exchange of whole fp32 gradients would take: every hosted gradient's slices to their owners, and the
    sums back."""
    size = len(topology.nodes)
    hosted = -(-virtual_workers // size)
    return predict(Route.ALL, topology, link, (hosted + 1) * 4 * numel / size)
