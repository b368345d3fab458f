"""Routes: the same payloads whichever way, fewer bytes between nodes, and a choice that everyone makes alike."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_dgc.errors import MessageError, PeerLost
from elastic_dgc.exchange.ask import Kind, Payload, Steps
from elastic_dgc.exchange.gather import gather_virtual
from elastic_dgc.exchange.members import Members, assign
from elastic_dgc.exchange.memory import Loss, Network, run_each, run_together
from elastic_dgc.exchange.probe import measure_link
from elastic_dgc.exchange.routes import Link, Route, Speed, Topology, choose, dense_exchange_s, predict
from elastic_dgc.exchange.tree import pack_bundle, unpack_bundle


def group(nodes: Sequence[int], virtual_workers: int, route: Route) -> list[Members]:
    size = len(nodes)
    hosts, topology = assign(virtual_workers, size), Topology(tuple(nodes))
    return [Members(rank, size, hosts, topology, transport=route) for rank in range(size)]


def gathers(members: list[Members], bytes_each: int = 50) -> list[Steps[list[Payload]]]:
    def steps(one: Members) -> Steps[list[Payload]]:
        own = {k: bytes([k + 1]) * bytes_each for k in one.hosted}
        rows = yield from gather_virtual(one, Kind.ROW, 4, own, phase="vote", deadline_s=1, bytes_each=1)
        return rows

    return [steps(one) for one in members]


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 12), st.integers(0, 99))
def test_the_tree_brings_everyone_what_all_to_all_brings(nodes: list[int], virtual_workers: int, seed: int) -> None:
    """Any number of workers on any nodes, in any order of turns; spares too."""
    expected = [bytes([k + 1]) * 50 for k in range(virtual_workers)]
    for got in run_together(gathers(group(nodes, virtual_workers, Route.TREE)), seed=seed):
        assert [bytes(one) for one in got] == expected


def test_a_bundle_crosses_to_every_other_node_once() -> None:
    """Three nodes of four workers: between nodes the tree sends a quarter of what all-to-all sends."""
    nodes = [node for node in range(3) for _ in range(4)]
    between = {}
    for route in Route:
        network = Network()
        run_together(gathers(group(nodes, 12, route), 10_000), network=network)
        between[route] = sum(one.bytes for one in network.sent if nodes[one.sender] != nodes[one.to])
    assert between[Route.ALL] == 12 * 8 * 10_000
    assert between[Route.TREE] == pytest.approx(between[Route.ALL] / 4, rel=0.01)


def test_frames_grow_with_the_logarithm() -> None:
    network = Network()
    run_together(gathers(group(range(16), 16, Route.TREE)), network=network)
    assert len([one for one in network.sent if one.sender == 3]) == 4


@pytest.mark.parametrize("lost", range(5))
@pytest.mark.parametrize("nodes", [(0, 0, 0, 1, 1), (0, 1, 2, 3, 4)])
def test_a_lost_worker_is_noticed_by_everyone_who_needs_it(nodes: tuple[int, ...], lost: int) -> None:
    network = Network(losses=[Loss(lost, "vote")])
    results = run_each(gathers(group(nodes, 5, Route.TREE)), network=network)
    assert all(isinstance(one.error, PeerLost) for rank, one in enumerate(results) if rank != lost)


@given(st.dictionaries(st.integers(-5, 2**31 - 1), st.binary(max_size=20), max_size=5), st.data())
def test_bundles(payloads: dict[int, bytes], data: st.DataObject) -> None:
    packed = pack_bundle(payloads)
    assert {n: bytes(one) for n, one in unpack_bundle(packed).items()} == payloads
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(MessageError):
        unpack_bundle(packed[:cut])
    with pytest.raises(MessageError):
        unpack_bundle(packed + b"x")


SLOW, FAST = Speed(0.2e-3, 12.5e6), Speed(20e-6, 2e9)


def test_the_choice_follows_workers_bytes_and_speed() -> None:
    alone, eights = Topology(tuple(range(4))), Topology(tuple(n for n in range(4) for _ in range(8)))
    link = Link(SLOW, FAST)
    assert choose(alone, Link(SLOW, None), 200e3) is Route.ALL  # the same bytes either way, and more waiting
    assert choose(eights, link, 200e3) is Route.TREE  # eight workers share a line of 100 Mbit/s
    assert choose(Topology(tuple(range(64))), Link(Speed(50e-6, 1.2e9), None), 300) is Route.TREE  # frames count
    assert choose(eights, None, 200e3) is Route.ALL  # nothing was measured
    assert choose(Topology((0, 1)), Link(SLOW, None), 1e9) is Route.ALL
    assert predict(Route.ALL, eights, link, 2e5) > 5 * predict(Route.TREE, eights, link, 2e5)


def test_places_follow_host_names() -> None:
    topology = Topology.of(("b", "a", "b", "c"))
    assert topology.nodes == (0, 1, 0, 2)
    assert topology.leaders == (0, 1, 3)
    assert topology.followers(0) == (2,)
    assert topology.widest == 2


@pytest.mark.parametrize("nodes", [(0,), (0, 1), (0, 0, 0), (0, 0, 1, 1)])
@pytest.mark.parametrize("library", [False, True])
def test_everyone_agrees_on_the_link(nodes: tuple[int, ...], library: bool) -> None:
    times = itertools.count()
    members = [Members.of(rank, len(nodes), 4) for rank in range(len(nodes))]
    steps = [measure_link(one, Topology(nodes), -1, lambda: float(next(times)), 1.0, library) for one in members]
    links = run_together(steps)
    assert len(set(links)) == 1
    link = links[0]
    assert (link is None) == (len(nodes) == 1)
    if link is not None:
        assert (link.network is not None) == (len(set(nodes)) > 1)
        assert (link.local is not None) == (max(nodes.count(n) for n in nodes) > 1)
        assert link.slowest.bytes_per_s > 0
        assert (link.collectives_gain > 0) == library


def test_what_a_dense_exchange_would_take() -> None:
    """Two workers on 100 Mbit/s: half of 4 MB there and half back, each way."""
    two = Topology((0, 1))
    assert dense_exchange_s(two, Link(SLOW, None), 2, 10**6) == pytest.approx(0.32, rel=0.01)
