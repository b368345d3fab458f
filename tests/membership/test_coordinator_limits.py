"""Every wait of the coordinator ends: pauses, phases, beats, exact copies, deaths at one place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from coordinated import World, world

import elastic_dgc.membership
from elastic_dgc.errors import UsageError
from elastic_dgc.membership import control as say
from elastic_dgc.membership.limits import Limits
from elastic_dgc.membership.roster import Tier, Worker
from elastic_dgc.membership.settings import CoordinatorSettings


def test_below_the_least_number_it_pauses_and_goes_on_when_one_comes() -> None:
    it = world("a1", "b1", min_workers=2)
    it.die("b1")
    assert it.view.number == 1
    assert it.got("a1", say.Paused)[0].reason.startswith("1 of at least 2 workers are there: waiting")
    assert it.timers["pause"] == it.limits.pause_s
    it.come("c1")
    assert (it.view.uids, it.view.ending) == (("a1", "c1"), False)
    assert "pause" not in it.timers


def test_workers_that_cannot_hold_all_pause_too() -> None:
    it = World()
    it.come("a1", "b1", capacity=2)
    it.train(3)
    it.die("b1")
    assert "room for 2 of 4 virtual workers" in it.got("a1", say.Paused)[0].reason
    it.come("c1", capacity=1)
    assert it.view.number == 1
    it.come("d1", capacity=1)
    assert it.view.uids == ("a1", "c1", "d1")
    assert [len(it.view.hosted(uid)) for uid in it.view.uids] == [2, 1, 1]


def test_after_a_long_pause_survivors_save_and_stop() -> None:
    it = World()
    it.come("a1", "b1", capacity=2)
    it.die("b1")
    it.fire("pause")
    assert (it.view.ending, it.view.uids, it.view.hosts) == (True, ("a1",), (0, 0, 0, 0))
    it.tell(say.Done("a1", it.view.number))
    assert it.finished is not None
    assert "room for 2 of 4" in it.finished


def test_whoever_waits_in_a_pause_may_do_so_longer_than_a_phase_may_last() -> None:
    it = world("a1", "b1", min_workers=2)
    it.die("b1")
    it.tell(say.Beat("a1", 1, "flush", 10))
    it.fire("phase:a1")
    it.fire("pause")
    assert (it.view.ending, it.view.uids) == (True, ("a1",))


def test_a_loss_does_not_make_a_pause_longer() -> None:
    it = world("a1", "b1", "c1", min_workers=3)
    it.die("c1")
    it.timers["pause"] = 1.0  # so much is left
    it.die("b1")
    assert it.timers["pause"] == 1.0


def test_where_nobody_is_left_keepers_keep_it() -> None:
    it = world("a1", keepers="a")
    it.die("a1")
    assert "0 of at least 1 workers" in it.said[-1][1]
    it.fire("pause")
    assert it.finished is not None


def test_all_are_lost_and_the_keepers_know() -> None:
    it = world("a1", "b1")
    it.keeper("a", say.Held(0, 9, message=9), say.Held(1, 10), say.Held(2, 10), say.Held(3, 10), shared=(4, 10))
    it.die("a1")
    it.die("b1")
    it.come("c1")
    assert it.view.closed_at == 10
    assert [it.view.sources[k][0].tag for k in range(4)] == [9, 10, 10, 10]
    assert it.got("c1", say.Plan)[-1].transfers == (say.Transfer("shared", "keeper:a", "c1", 10),)
    assert it.workers["c1"].decided == 10


def test_all_are_lost_and_the_newest_checkpoint_of_this_history_counts() -> None:
    it = world("a1", "b1")
    it.do(it.coordinator.checkpoint_written(1, 8))
    for uid in ("a1", "b1"):
        it.die(uid)
    it.come("c1")
    assert (it.view.closed_at, it.view.sources[0][0].tier) == (8, Tier.CHECKPOINT)
    it.do(it.coordinator.checkpoint_written(1, 9))  # of a history that ended at 8
    it.die("c1")
    it.come("d1")
    assert it.view.closed_at == 8
    assert it.got("d1", say.Plan)[-1].transfers == (say.Transfer("shared", "storage", "d1", 8),)


def test_spares_that_know_less_than_the_keepers_of_the_lost_begin_where_those_were() -> None:
    it = world("a1", "b1", virtual_workers=1)
    it.keeper("a", say.Held(0, 10), shared=(5, 10))
    it.workers["b1"].decided = 7  # nobody asks a spare for anything
    it.die("a1")
    assert (it.view.uids, it.view.closed_at) == (("b1",), 10)
    assert it.got("b1", say.Plan)[-1].transfers == (say.Transfer("shared", "keeper:a", "b1", 10),)


def test_so_do_survivors_that_wait_for_the_state_of_what_they_host() -> None:
    it = world("a1", "b1", virtual_workers=1)
    it.workers["b1"].quiet.add(say.Stuck)
    it.die("a1")
    (k,) = it.view.hosted("b1")
    it.tell(say.Stuck("b1", it.view.number, k, ()))
    it.keeper("a", say.Held(0, 14), shared=(5, 14))  # it had gone on, with no need of the others
    assert (it.view.uids, it.view.closed_at) == (("b1",), 14)
    assert it.got("b1", say.Plan)[-1].transfers == (say.Transfer("shared", "keeper:a", "b1", 14),)


def test_silence_is_a_loss_and_beats_are_answered() -> None:
    it = world("a1", "b1")
    it.tell(say.Beat("b1", 1))
    assert it.got("b1", say.BeatSeen)
    del it.workers["b1"]
    assert it.fire("beat:b1") == it.limits.silent_s
    assert it.view.uids == ("a1",)


def test_a_newcomer_that_is_silent_is_forgotten_and_may_say_hello_again() -> None:
    it = world("a1")
    it.come("b1")
    number = it.view.number
    it.fire("beat:b1")
    assert it.view.number == number
    it.tell(say.Beat("b1", 0))  # it was only slow
    assert it.got("b1", say.Poll)
    it.boundary()
    assert it.view.uids == ("a1", "b1")


def test_a_phase_has_its_limit_from_the_first_beat_that_shows_it() -> None:
    it = world("a1", "b1")
    it.tell(say.Beat("b1", 1, "forward", 10, 2))
    assert it.timers["phase:b1"] == it.limits.forward_s
    it.timers["phase:b1"] = 5.0
    it.tell(say.Beat("b1", 1, "forward", 10, 2))
    assert it.timers["phase:b1"] == 5.0
    it.tell(say.Beat("b1", 1, "forward", 10, 3))
    assert it.timers["phase:b1"] == it.limits.forward_s
    it.fire("phase:b1")
    assert it.view.uids == ("a1",)
    assert any("in forward of virtual worker 3, attempt 10" in text for _, text in it.said)


def test_whoever_waits_for_peers_has_time_to_suspect_them_first() -> None:
    it = world("a1", "b1")
    it.tell(say.Beat("a1", 1, "vote", 10))
    assert it.timers["phase:a1"] > it.limits.vote_s
    it.tell(say.Suspect("a1", 1, "b1", "no row"))
    assert it.view.number == 2
    assert "phase:a1" not in it.timers  # the change has limits of its own
    it.tell(say.Beat("a1", 2, "vote", 10))
    assert "phase:a1" in it.timers
    it.tell(say.Beat("a1", 2, "done", 10))
    assert "phase:a1" not in it.timers
    it.tell(say.Beat("a1", 2, "tea", 10))
    assert it.timers["phase:a1"] >= it.limits.pause_s
    assert it.said[-1][0] == "error"


def poison(it: World, uid: str, attempt: int, virtual_worker: int) -> None:
    it.tell(say.Beat(uid, it.view.number, "forward", attempt, virtual_worker))
    it.die(uid)


def test_the_third_death_in_one_forward_pass_stops_the_run_whoever_coordinates() -> None:
    it = world("a1", "b1", "c1", "d1", "e1")
    poison(it, "b1", 10, 2)
    it.restart()
    poison(it, "c1", 10, 2)
    poison(it, "d1", 10, 1)
    assert it.finished is None
    poison(it, "e1", 10, 2)
    assert it.finished is not None
    assert "attempt 10, virtual worker 2: its samples (rows 10 and 2) or the code" in it.finished
    assert it.workers["a1"].ended == "stop"
    it.come("f1")
    assert it.workers["f1"].ended == "stop"


def test_exact_mode_waits_says_where_a_copy_would_be_and_then_allows_another() -> None:
    it = world("a1", "b1", "c1")
    it.workers["a1"].quiet = it.workers["b1"].quiet = {say.Stuck}
    [k] = it.view.hosted("c1")
    it.die("c1")
    host, number = it.view.workers[it.view.hosts[k]].uid, it.view.number
    assert it.timers[f"rehost:{k}"] == it.limits.rehost_s
    it.tell(say.Stuck(host, number, k, ("keeper at c: no answer",)))
    level, text = it.said[-1]
    assert level == "warning"
    assert "the keeper of node c or node a would have one" in text
    assert "no answer" in text
    assert f"rehost:{k}" not in it.timers
    it.tell(say.Suspect("a1", number, "b1", "late"))  # a change of view does not make the wait longer
    it.timers[f"exact:{k}"] = 3.0
    it.tell(say.Stuck(host, it.view.number, k, ()))
    assert it.fire(f"exact:{k}") == 3.0
    assert it.got(host, say.AllowInexact)[-1] == say.AllowInexact(2, it.view.number, k)
    it.tell(say.Hosted(host, it.view.number, k, Tier.ZERO, ("keeper at c",), 2.5))
    assert "lost_mass at most 2.5" in it.said[-1][1]
    assert not [name for name in it.timers if name.startswith(("rehost", "exact"))]


def test_a_keeper_that_comes_back_is_asked_for_what_is_waited_for() -> None:
    it = world("a1", "b1")
    it.workers["a1"].quiet = {say.Stuck}
    lost = it.view.hosted("b1")
    it.die("b1")
    it.tell(say.Stuck("a1", it.view.number, lost[0], ()))
    it.workers["a1"].owned -= set(lost)
    it.keeper("b", *(say.Held(k, 10) for k in lost))
    assert it.view.number == 3
    assert {it.view.sources[k][0].tier for k in lost} == {Tier.KEEPER}


@pytest.mark.parametrize("strict", [False, True])
def test_fast_mode_does_not_wait_and_strict_mode_stops(strict: bool) -> None:
    it = world("a1", "b1", exact=strict, strict=strict)
    it.workers["a1"].quiet = {say.Stuck}
    k = it.view.hosted("b1")[0]
    it.die("b1")
    it.tell(say.Stuck("a1", it.view.number, k, ()))
    if strict:
        it.fire(f"exact:{k}")
        assert it.finished is not None
        assert it.workers["a1"].ended == "stop"
    else:
        assert it.got("a1", say.AllowInexact)


def test_a_new_host_that_never_has_it_is_lost() -> None:
    it = world("a1", "b1", "c1")
    it.workers["a1"].quiet = it.workers["b1"].quiet = {say.Stuck}
    [k] = it.view.hosted("c1")
    it.die("c1")
    host = it.view.workers[it.view.hosts[k]].uid
    it.fire(f"rehost:{k}")
    assert host not in it.view.uids
    assert k in it.view.sources


def test_keepers_beat_too() -> None:
    it = world("a1", "b1")
    it.tell(say.Beat("keeper:b", 1))
    assert it.got("keeper:b", say.BeatSeen)
    it.fire("beat:keeper:b")
    it.die("b1")
    assert not it.got("keeper:b", say.Fence)


def test_a_stop_that_is_asked_for_saves_at_a_boundary() -> None:
    it = world("a1", "b1")
    it.do(it.coordinator.request_stop("SIGTERM"))
    it.boundary()
    assert it.view.ending
    it.tell(say.Done("b1", it.view.number))
    assert it.finished == "SIGTERM"
    assert it.coordinator.died("a1") == it.coordinator.timer("beat:a1") == []


def test_a_stop_before_the_first_view_or_in_a_pause_is_at_once() -> None:
    it = World(min_workers=2)
    it.come("a1")
    it.do(it.coordinator.request_stop("SIGTERM"))
    assert (it.finished, it.workers["a1"].ended) == ("SIGTERM", "stop")
    it = world("a1", "b1", min_workers=2)
    it.die("b1")
    it.do(it.coordinator.request_stop("SIGTERM"))
    it.settle()
    assert (it.view.ending, it.view.uids) == (True, ("a1",))


def test_the_run_is_over_when_one_says_so_of_this_view() -> None:
    it = world("a1", "b1")
    it.come("c1")
    it.tell(say.Done("a1", 0))
    assert it.finished is None
    it.tell(say.Done("a1", 1))
    assert it.finished == "the run is complete"
    assert (it.workers["c1"].ended, it.workers["b1"].ended) == ("stop", "")


def test_a_hello_of_a_view_that_was_never_recorded_is_refused_loudly() -> None:
    it = world("a1")
    it.tell(say.Hello(Worker("z1", "z"), 7))
    assert it.got("z1", say.Out)
    assert it.said[-1][0] == "error"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"min_workers": 3, "max_workers": 2}, "must not be above max_workers"),
        ({"max_workers": 2, "strict": True, "exact": False}, "set exact = True"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        CoordinatorSettings(virtual_workers=1, **values)


WORKERS_SIDE = {  # most of them as phases, whose limits come from the table itself
    "forward_s", "vote_s", "exchange_s", "evaluation_s", "digest_s", "checkpoint_s", "boundary_s", "coordinator_s",
    "alone_s",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted({one.name for one in dataclasses.fields(Limits)} - WORKERS_SIDE))
def test_every_limit_of_the_coordinator_is_used(name: str) -> None:
    files = Path(elastic_dgc.membership.__file__).parent.glob("*.py")
    assert any(f"limits.{name}" in one.read_text() for one in files)
