"""The coordinator changes views: on losses, joins, leaves and suspicions, and never announces what is not persisted."""

from __future__ import annotations

import pytest
from coordinated import World, world

from elastic_dgc.errors import ProtocolError
from elastic_dgc.membership import control as say
from elastic_dgc.membership.records import Fenced
from elastic_dgc.membership.roster import Worker


def test_the_first_view_waits_for_the_least_number_of_workers() -> None:
    it = World(min_workers=3)
    it.come("a1", "b1")
    assert not it.views
    assert it.timers["pause"] == it.limits.pause_s
    it.come("c1")
    assert (it.view.uids, it.view.closed_at) == (("a1", "b1", "c1"), 0)
    assert all(places[0].tier.name == "INITIAL" for places in it.view.sources.values())
    assert "pause" not in it.timers


def test_a_loss_is_fenced_flushed_and_rehosted() -> None:
    it = world("a1", "b1", "c1")
    it.workers["a1"].decided = 11  # it alone has decided attempt 10
    before = it.view
    it.die("c1")
    assert it.view.uids == ("a1", "b1")
    assert it.view.closed_at == 11
    assert all(one.decided == 11 for one in it.workers.values())
    assert it.killed == ["c1"]
    moved = [k for k in range(4) if it.view.uids[it.view.hosts[k]] != before.uids[before.hosts[k]]]
    assert moved == sorted(before.hosted("c1")) == sorted(it.view.sources)
    assert Fenced(2, 2, ("c1",)) in it.records
    assert [type(one).__name__ for one in it.records[-2:]] == ["Fenced", "View"]
    assert it.got("b1", say.Plan)[0].transfers[0] == say.Transfer("entry", "a1", "b1", 10)


def test_the_stage_of_the_boundary_is_that_of_the_slowest() -> None:
    it = world("a1", "b1", "c1")
    it.workers["a1"].stage, it.workers["b1"].stage = 2, 1
    it.die("c1")
    assert it.view.stage == 1
    it.workers["b1"].decided -= 1
    it.tell(say.Suspect("a1", it.view.number, "b1", "late"))
    assert (it.view.number, it.view.stage) == (3, 0)


def test_a_second_loss_in_the_flush_begins_again() -> None:
    it = world("a1", "b1", "c1", "d1")
    it.workers["b1"].quiet.add(say.Plan)
    it.die("d1")
    assert it.view.number == 1
    it.die("c1")
    it.workers["b1"].quiet.clear()
    it.tell(say.Flushed("b1", 2, 10))  # of the change that was given up
    assert it.view.number == 1
    it.tell(say.Flushed("b1", 3, 10))
    assert (it.view.number, it.view.uids) == (3, ("a1", "b1"))
    assert it.got("a1", say.Fence)[-1].removed == ("d1", "c1")


@pytest.mark.parametrize(("kind", "timer"), [(say.Fence, "report"), (say.Plan, "flush")])
def test_whoever_is_silent_in_a_change_is_lost_too(kind: type, timer: str) -> None:
    it = world("a1", "b1", "c1")
    it.workers["b1"].quiet.add(kind)
    it.die("c1")
    assert it.fire(timer) == getattr(it.limits, f"{timer}_s")
    assert (it.view.uids, it.killed) == (("a1",), ["c1", "b1"])


def test_a_keeper_that_is_silent_is_passed_over_in_its_own_short_time() -> None:
    it = world("a1", "b1", keepers=["a", "b"])
    del it.keepers["b"]
    it.die("b1")
    assert it.view.number == 1
    assert it.fire("inventory") == it.limits.reach_s
    assert it.view.number == 2


def test_a_keeper_that_dies_in_a_change_is_not_waited_for() -> None:
    it = world("a1", "b1", keepers=["a", "b"])
    del it.keepers["b"]
    it.die("b1")
    it.do(it.coordinator.keeper_died("b"))
    it.settle()
    assert it.view.number == 2
    assert "inventory" not in it.timers


def test_an_orphan_comes_from_the_keeper_that_has_it() -> None:
    it = world("a1", "b1", keepers=["a"])
    lost = it.view.hosted("b1")
    it.keeper("b", *(say.Held(k, 10, message=10) for k in lost))
    it.die("b1")
    for k in lost:
        first = it.view.sources[k][0]
        assert (first.tier.name, first.node, first.tag) == ("KEEPER", "b", 10)
    plan = it.got("keeper:b", say.Plan)[-1]
    assert {(one.what, one.virtual_worker) for one in plan.transfers} == {("message", k) for k in lost}
    assert it.got("keeper:a", say.Install)[-1].view == it.view


def test_newcomers_join_together_at_a_boundary_that_was_announced() -> None:
    it = world("a1", "b1")
    it.come("c1", "d1")
    assert it.view.number == 1
    assert [len(it.got(uid, say.Pending)) for uid in ("a1", "b1")] == [1, 1]
    it.boundary()
    assert (it.view.number, it.view.uids) == (2, ("a1", "b1", "c1", "d1"))
    assert sorted(it.view.hosts) == [0, 1, 2, 3]
    assert not it.view.sources  # handed over by those who had it
    shared = [one for one in it.got("c1", say.Plan)[-1].transfers if one.what == "shared"]
    assert [(one.sender, one.to) for one in shared] == [("a1", "c1"), ("a1", "d1")]
    assert it.got("c1", say.Plan)[-1].witness == {"c1": "b1", "d1": "b1"}


def test_a_boundary_with_nobody_waiting_any_more_lets_all_go_on() -> None:
    it = world("a1", "b1")
    it.come("c1")
    it.die("c1")
    it.boundary()
    assert (it.view.number, it.view.uids) == (2, ("a1", "b1"))


def test_a_newcomer_comes_in_with_a_loss_if_its_plan_is_not_sent_and_else_later() -> None:
    it = world("a1", "b1", "c1")
    it.workers["b1"].quiet.add(say.Fence)
    it.die("c1")
    it.come("d1")
    it.workers["b1"].quiet = {say.Plan}
    it.tell(say.Hello(it.workers["b1"].me, 1))  # it had not heard the fence: it is told again
    it.come("e1")
    it.workers["b1"].quiet.clear()
    it.tell(say.Hello(it.workers["b1"].me, 1))
    assert it.view.uids == ("a1", "b1", "d1")
    assert len(it.got("a1", say.Pending)) == 1
    it.boundary()
    assert it.view.uids == ("a1", "b1", "d1", "e1")


def test_spares_beyond_the_most_wait_outside_and_step_in() -> None:
    it = world("a1", "b1", max_workers=2)
    it.come("c1", "d1")
    assert not it.got("a1", say.Pending)
    it.die("a1")
    assert it.view.uids == ("b1", "c1")
    it.die("d1")
    assert it.view.number == 2


def test_a_leave_hands_over_and_is_out() -> None:
    it = world("a1", "b1", "c1")
    held = it.view.hosted("b1")
    it.tell(say.Leave("b1", "spot warning"))
    it.boundary()
    assert it.view.uids == ("a1", "c1")
    moved = {one.virtual_worker for one in it.got("b1", say.Plan)[-1].transfers if one.what == "owned"}
    assert moved == set(held)
    assert not it.view.sources
    assert it.workers["b1"].ended == "out"
    assert "beat:b1" not in it.timers
    it.tell(say.Beat("b1", 1))
    assert it.got("b1", say.Out)


def test_a_spare_that_leaves_has_no_part_in_the_flush_wherever_it_is() -> None:
    it = world("a1", "b1", "c1", virtual_workers=2)
    spare = next(uid for uid in it.view.uids if not it.view.hosted(uid))
    it.workers[spare].decided -= 1  # nobody asks it for anything
    it.tell(say.Leave(spare, "spot warning"))
    it.boundary()
    assert spare not in it.view.uids
    assert not it.got(spare, say.Plan), "it could not follow one"
    assert it.workers[spare].ended == "out"


def test_whoever_is_still_there_when_the_run_is_over_is_told() -> None:
    it = world("a1", "b1")
    it.tell(say.Done("a1", 1))
    assert not it.got("b1", say.Stop), "it is about to end by itself"
    it.tell(say.Beat("b1", 1), say.Beat("keeper:a", 1))
    assert it.workers["b1"].ended == "stop"
    assert not it.got("keeper:a", say.Stop)


def test_where_all_leave_the_state_is_saved() -> None:
    it = world("a1", "b1", min_workers=2)
    it.tell(say.Leave("a1", "drained"), say.Leave("b1", "drained"))
    it.boundary()
    assert (it.view.ending, it.view.uids) == (True, ("a1", "b1"))
    it.tell(say.Done("a1", it.view.number))
    assert it.finished is not None
    assert "drained" in it.finished


def test_a_suspicion_that_is_answered_changes_the_view_and_nobody() -> None:
    it = world("a1", "b1", "c1")
    it.workers["b1"].quiet.add(say.Ping)
    it.tell(say.Suspect("a1", 1, "b1", "connection closed"), say.Suspect("c1", 1, "b1", "connection closed"))
    assert it.view.number == 1
    assert it.timers["confirm:b1"] == it.limits.confirm_s
    assert len(it.got("b1", say.Ping)) == 1
    it.tell(say.Beat("b1", 1))
    assert (it.view.number, it.view.uids) == (2, ("a1", "b1", "c1"))
    assert not it.killed
    assert "confirm:b1" not in it.timers


def test_a_suspicion_that_is_not_answered_is_a_loss() -> None:
    it = world("a1", "b1", "c1")
    it.workers["b1"].quiet.add(say.Ping)
    it.tell(say.Suspect("a1", 1, "b1", "connection closed"))
    it.fire("confirm:b1")
    assert (it.view.uids, it.killed) == (("a1", "c1"), ["b1"])


def test_suspicions_of_an_older_view_or_of_a_stranger_are_ignored() -> None:
    it = world("a1", "b1", "c1")
    it.tell(say.Suspect("a1", 0, "b1", "late"), say.Suspect("x1", 1, "b1", "stranger"), say.Suspect("a1", 1, "x1", "?"))
    it.tell(say.Suspect("a1", 1, "a1", "itself"))
    assert not it.got("b1", say.Ping)
    assert it.view.number == 1


def test_of_two_that_cannot_reach_each_other_one_goes() -> None:
    it = world("a1", "b1", "c1", "d1")
    it.workers["b1"].cut_off_from = {"d1"}  # one direction is enough
    it.tell(say.Suspect("b1", 1, "d1", "silent"))
    assert it.view.uids == ("a1", "b1", "c1")
    assert it.killed == ["d1"]
    assert it.view.number == 3  # 2 found it out


def test_whoever_was_removed_is_told_and_comes_back_only_as_another() -> None:
    it = world("a1", "b1")
    it.die("b1")
    it.tell(say.Beat("b1", 1), say.Report("b1", 2, 99, *[frozenset()] * 4), say.Hello(Worker("b1", "b"), 0))
    assert len(it.got("b1", say.Out)) == 3
    it.come("b2")
    it.boundary()
    assert it.view.uids == ("a1", "b2")


def test_reports_that_break_r9_stop_the_run() -> None:
    it = world("a1", "b1", "c1")
    it.workers["a1"].decided = 12
    it.die("c1")
    assert it.finished is not None
    assert "more than one apart" in it.finished
    assert it.workers["a1"].ended == it.workers["b1"].ended == "stop"


def test_an_acknowledgement_of_another_attempt_stops_the_run() -> None:
    it = world("a1", "b1", "c1")
    it.workers["b1"].quiet.add(say.Plan)
    it.die("c1")
    it.tell(say.Flushed("b1", 2, 9))
    assert it.finished is not None
    assert it.view.number == 1


def test_what_is_no_message_is_refused() -> None:
    it = world("a1")
    with pytest.raises(ProtocolError, match="Poll"):
        it.coordinator.handle(say.Poll(1))
    with pytest.raises(ProtocolError, match="tea"):
        it.coordinator.timer("tea")


def test_a_report_to_an_older_fence_does_not_count() -> None:
    it = world("a1", "b1", "c1", "d1")
    it.workers["b1"].quiet.add(say.Fence)
    it.die("d1")
    it.die("c1")
    it.tell(say.Report("b1", 2, 10, *[frozenset()] * 4))
    assert it.view.number == 1
    it.tell(say.Report("b1", 3, 10, frozenset(), frozenset(), frozenset({"a1", "b1"}), frozenset()))
    assert it.view.number == 3
