"""The coordinator may end between any two of its actions: the next one comes to one consistent view."""

from __future__ import annotations

import pytest
from coordinated import Crashed, World, world
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_dgc.membership import control as say
from elastic_dgc.membership.actions import Persist, Send
from elastic_dgc.membership.coordinator import Coordinator
from elastic_dgc.membership.limits import Limits
from elastic_dgc.membership.records import Fenced, Started
from elastic_dgc.membership.roster import View, Worker
from elastic_dgc.membership.settings import CoordinatorSettings

SCENARIOS = {
    "first view": (lambda: World(min_workers=3), lambda it: it.come("a1", "b1", "c1"), {"a1", "b1", "c1"}),
    "loss": (lambda: world("a1", "b1", "c1", keepers="abc"), lambda it: it.die("c1"), {"a1", "b1"}),
    "join": (lambda: world("a1", "b1"), lambda it: (it.come("c1"), it.boundary()), {"a1", "b1", "c1"}),
    "leave": (
        lambda: world("a1", "b1", "c1"),
        lambda it: (it.tell(say.Leave("b1", "drain")), it.boundary()),
        {"a1", "c1"},
    ),
    "partition": (
        lambda: world("a1", "b1", "c1"),
        lambda it: (it.workers["a1"].cut_off_from.add("c1"), it.tell(say.Suspect("a1", 1, "c1", "cut"))),
        {"a1", "b1"},
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_coordinator_may_crash_after_each_of_its_actions(name: str) -> None:
    """Whatever was executed, all end in one view that was persisted once, with the members that there are."""
    make, event, members = SCENARIOS[name]
    for actions in range(1000):
        it = make()
        it.left = actions
        try:
            event(it)
        except Crashed:
            it.restart()
        else:
            assert actions > 10
            return
        for _ in range(4):
            it.settle()
            it.beats()
            if name == "leave" and "b1" in it.view.uids:
                it.tell(say.Leave("b1", "drain"))  # it says so again to a coordinator that is new
            if name == "partition" and "c1" in it.view.uids:
                it.tell(say.Suspect("a1", it.view.number, "c1", "cut"))
            if it.announced():
                it.boundary()
        living = {uid for uid, one in it.workers.items() if not one.ended}
        assert set(it.view.uids) == members == living, actions
        assert all(it.workers[uid].view == it.view.number for uid in members), actions
        numbers = [number for number, what in it.numbers() if what == "view"]
        assert numbers == sorted(set(numbers))
        assert it.coordinator.died("nobody") == []
    raise AssertionError("the scenario never ended by itself")


def test_a_coordinator_that_comes_back_disturbs_nobody() -> None:
    it = world("a1", "b1", keepers="ab")
    before = it.view
    it.restart()
    assert it.records[-1] == Started(3)
    assert it.view == before
    assert [type(message) for to, message in it.sent if to == "a1"] == [say.Install, say.Poll]
    del it.workers["b1"]
    assert it.fire("beat:b1") == it.limits.silent_s
    assert it.view.uids == ("a1",)


def test_it_begins_with_what_was_open() -> None:
    """Also the numbers that its predecessor gave out without an end are never used again."""
    view = View(4, (Worker("a1", "a"), Worker("b1", "b"), Worker("c1", "c")), (0, 1, 2), 7)
    records = [Started(1), view, Fenced(1, 5, ("c1",)), Fenced(1, 6, (), leaving=("b1",))]
    settings = CoordinatorSettings(virtual_workers=3, max_workers=4)
    actions = Coordinator(settings, Limits(), records).start()
    persisted = [one.record for one in actions if isinstance(one, Persist)]
    assert persisted == [Started(2), Fenced(2, 7, (), leaving=("b1",))]
    fences = {one.to: one.message for one in actions if isinstance(one, Send) and isinstance(one.message, say.Fence)}
    assert set(fences) == {"a1", "b1"}
    assert fences["a1"].removed == ("c1",)
    assert not any(isinstance(one, Send) for one in actions[: actions.index(Persist(persisted[1]))])


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["come", "die", "suspect", "leave", "boundary"]), st.integers(0, 4)),
        st.tuples(st.just("crash"), st.integers(0, 12)),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(EVENTS)
def test_whatever_happens_it_ends_in_one_view_of_all_who_live(events: list[tuple[str, int]]) -> None:
    it = world("a1", "b1", "c1", max_workers=20)
    came = 1
    for what, number in events:
        living = sorted(uid for uid, one in it.workers.items() if not one.ended)
        uid = living[number % len(living)] if living else ""
        if what == "come":
            came += 1
            it.come(f"{'abcde'[number]}{came}")
        elif what == "crash":
            crash_after(it, number)
        elif uid and what == "die":
            it.die(uid)
        elif uid and what == "suspect":
            it.tell(say.Suspect(living[0], it.view.number, uid, "silent"))
        elif uid and what == "leave" and len(living) > 1:
            it.tell(say.Leave(uid, "drained"))
        elif what == "boundary" and it.announced():
            it.boundary()
    for _ in range(6):
        it.beats()
        if it.announced():
            it.boundary()
    living = sorted(uid for uid, one in it.workers.items() if not one.ended)
    outside = set(living) - set(it.view.uids)
    assert not living or set(it.view.uids) <= set(living)
    assert it.view.ending or not outside  # nobody comes in where all the others leave
    assert all(it.workers[uid].view == it.view.number for uid in living if uid not in outside)
    assert len({one.number for one in it.views}) == len(it.views)


def crash_after(it: World, actions: int) -> None:
    """A member dies, and the coordinator with it, so many actions later."""
    uid = it.view.uids[0]
    it.workers.pop(uid, None)
    it.do(it.coordinator.died(uid)[:actions])
    it.restart()
