"""Where lost state comes from: the order of places, and the highest attempt for which everything exists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_dgc.membership.control import Held, Inventory
from elastic_dgc.membership.recovery import RestartPoint, Saved, restart_point, sources
from elastic_dgc.membership.roster import Source, Tier, View, Worker
from elastic_dgc.membership.suspicion import removed_for_reach

VIEW = View(3, (Worker("a", "x"), Worker("b", "y")), (0, 1), 5)


def inventory(node: str, *held: Held, shared: tuple[int, int] | None = None) -> Inventory:
    return Inventory(node, 4, held, shared)


def found(*held: Held, closed_at: int = 10, saved: tuple[Saved, ...] = (), fast: bool = False) -> list[Source]:
    return list(sources(1, closed_at, [inventory("y", *held)], VIEW, saved, fast))


ZERO = Source(Tier.ZERO)


@pytest.mark.parametrize(
    ("held", "first"),
    [
        (Held(1, 10), Source(Tier.KEEPER, "y", 10)),
        (Held(1, 9, message=9), Source(Tier.KEEPER, "y", 9)),
        (Held(1, 9), Source(Tier.KEEPER, "y", 9)),
        (Held(1, 6), Source(Tier.KEEPER, "y", 6)),
        (Held(1, 12, rolling=True), Source(Tier.BUDDY, "y", 12, rolling=True)),
        (Held(1, 11), ZERO),
        (Held(1, 11, message=10), ZERO),
        (Held(0, 10), ZERO),
    ],
)
def test_the_first_place(held: Held, first: Source) -> None:
    assert found(held)[0] == first
    assert found(held)[-1] == ZERO


def test_all_places_in_order_and_fast_mode_replays_nothing() -> None:
    inventories = [
        inventory("x", Held(1, 10), Held(1, 12, rolling=True)),
        inventory("y", Held(1, 10), Held(1, 9, message=9)),
        inventory("z", Held(1, 4)),
    ]
    saved = (Saved(3, 7), Saved(3, 10), Saved(3, 11))
    exact = sources(1, 10, inventories, VIEW, saved, False)
    assert [(one.tier, one.node, one.tag) for one in exact] == [
        (Tier.KEEPER, "y", 10),  # where its host was
        (Tier.KEEPER, "x", 10),
        (Tier.KEEPER, "y", 9),
        (Tier.CHECKPOINT, "", 10),
        (Tier.KEEPER, "z", 4),
        (Tier.BUDDY, "x", 12),
        (Tier.STALE, "x", 12),
        (Tier.STALE, "y", 9),
        (Tier.STALE, "", 7),
        (Tier.STALE, "z", 4),
        (Tier.ZERO, "", 0),
    ]
    assert [one.tier.exact for one in exact] == [True] * 6 + [False] * 5
    fast = sources(1, 10, inventories, VIEW, saved, True)
    assert [one.tier for one in fast[:5]] == [Tier.KEEPER] * 3 + [Tier.CHECKPOINT, Tier.STALE]
    assert fast[4:] == exact[6:]


def test_before_the_first_attempt_zeros_are_exact() -> None:
    assert sources(1, 0, [], None, (), False) == (Source(Tier.INITIAL),)
    assert found(Held(1, 0), closed_at=0) == [Source(Tier.KEEPER, "y", 0), Source(Tier.INITIAL)]


@pytest.mark.parametrize(
    ("inventories", "saved", "point"),
    [
        ([], (), RestartPoint(0, "", 5)),
        ([], (Saved(2, 4), Saved(3, 9)), RestartPoint(9, "storage")),
        ([], (Saved(2, 9), Saved(3, 4)), RestartPoint(4, "storage", 1)),  # the newest is the highest (view, attempt)
        # all at 10, and both can give shared state
        ([inventory("x", Held(0, 10), shared=(2, 10)), inventory("y", Held(1, 10), shared=(4, 10))], (),
         RestartPoint(10, "keeper:y")),
        # one flipped to 11 before it died, the other had not: what is in the log takes it there
        ([inventory("x", Held(0, 11, message=10), shared=(2, 11)), inventory("y", Held(1, 10, message=10))], (),
         RestartPoint(11, "keeper:x")),
        # the flipped one's log is gone with what it applied: only a checkpoint helps
        ([inventory("x", Held(0, 11, message=10)), inventory("y", Held(1, 10), shared=(2, 10))], (Saved(3, 8),),
         RestartPoint(8, "storage")),
        # one node is gone with its keeper: a rolling snapshot with replay
        ([inventory("x", Held(0, 10), Held(1, 9, rolling=True), shared=(2, 10))], (Saved(3, 8),),
         RestartPoint(10, "keeper:x")),
        # ... whose log does not reach back
        ([inventory("x", Held(0, 10), Held(1, 6, rolling=True), shared=(8, 10))], (Saved(3, 8),),
         RestartPoint(8, "storage")),
        # shared state is nowhere
        ([inventory("x", Held(0, 10), Held(1, 10))], (Saved(3, 8),), RestartPoint(8, "storage")),
        # a checkpoint is newer than what keepers still have
        ([inventory("x", Held(0, 6), Held(1, 6), shared=(2, 6))], (Saved(3, 8),), RestartPoint(8, "storage")),
        # keepers have all at 7; a replay of many attempts for one attempt more is not worth it
        ([inventory("x", Held(0, 8), Held(0, 7), Held(1, 7), Held(1, 2, rolling=True), shared=(1, 7))], (),
         RestartPoint(7, "keeper:x")),
    ],
)  # fmt: skip
def test_where_a_run_begins_again(inventories: list[Inventory], saved: tuple[Saved, ...], point: RestartPoint) -> None:
    assert restart_point(inventories, saved, 2, 5) == point


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(-1, 6)), max_size=6), st.integers(0, 6))
def test_a_restart_point_has_an_exact_place_for_every_virtual_worker(
    copies: list[tuple[int, int, int]], high: int
) -> None:
    inventories = [inventory("x", *(Held(*one) for one in copies), shared=(0, high))]
    saved = (Saved(3, 2),)
    point = restart_point(inventories, saved, 2, 0)
    assert point.closed_at >= 2
    for k in range(2):
        assert sources(k, point.closed_at, inventories, VIEW, saved, False)[0].tier.exact


@given(st.integers(0, 6).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.tuples(*[st.integers(0, 5)] * 2)))))
def test_whoever_stays_can_talk_to_all_others(drawn: tuple[int, set[tuple[int, int]]]) -> None:
    size, cut = drawn
    order = [f"w{rank}" for rank in range(size)]
    reachable = {
        one: frozenset(other for j, other in enumerate(order) if (i, j) not in cut) for i, one in enumerate(order)
    }
    removed = removed_for_reach(order, reachable)
    staying = [uid for uid in order if uid not in removed]
    assert all(two in reachable[one] for one in staying for two in staying if one != two)
    assert bool(removed) == any(i != j and i < size and j < size for i, j in cut)
    assert size == 0 or staying


def test_fewest_links_go_first_and_then_the_highest_rank() -> None:
    everyone = frozenset("abcd")
    reachable = {"a": everyone - {"b"}, "b": everyone - {"a", "c"}, "c": everyone - {"b"}, "d": everyone}
    assert removed_for_reach("abcd", reachable) == ("b",)
    assert removed_for_reach("abcd", {**dict.fromkeys("bcd", everyone), "a": everyone - {"b"}}) == ("b",)
