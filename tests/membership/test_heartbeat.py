"""Beats show a live run without comparing clocks, and tell a group that it is the past. Time is simulated."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_dgc.errors import StorageError
from elastic_dgc.keeping.storage import LocalStorage
from elastic_dgc.membership.alive import FILE, Alive, last_beat, watch_alive
from elastic_dgc.membership.heartbeat import DriverBeat, Heartbeat
from elastic_dgc.membership.view import claim_view


class World:
    """A storage that can fail, a clock, and things that happen while somebody sleeps."""

    def __init__(self, root: Path) -> None:
        self.storage = Breakable(root)
        self.now_s = 1000.0
        self.slept: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.fences: list[str] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        self.meanwhile()

    def claim(self) -> int:
        return claim_view(self.storage, run="r", workers=1, started_unix_s=0.0, resumed_from=None, hosts=["h"]).number

    def heartbeat(self, view: int, period_s: float = 3600.0) -> Heartbeat:
        # The thread's own period is an hour: the tests call `beat` in its place.
        return Heartbeat(
            self.storage, view, period_s, on_fenced=self.fences.append, silence_limit_s=60.0, clock=self.clock
        )

    def watch(self, watch_s: float | None = 6.0) -> Alive | None:
        return watch_alive(self.storage, watch_s, clock=self.clock, sleep=self.sleep)


class Breakable(LocalStorage):
    broken = False

    def write(self, path: str, data: bytes) -> None:
        if self.broken:
            raise StorageError("cannot write: disk full")
        super().write(path, data)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_beat_that_advances_is_a_live_run_and_seen_at_the_first_advance(world: World) -> None:
    heart = world.heartbeat(world.claim()).start()
    heart.attempt = 41
    world.meanwhile = lambda: heart.beat() if len(world.slept) == 3 else None
    alive = world.watch()
    assert alive is not None
    assert (alive.view, alive.beat, alive.attempt, alive.state) == (1, 1, 41, "running")
    assert len(world.slept) == 3
    heart.stop("stopped")


def test_a_beat_that_stands_still_is_a_dead_run_however_young_its_time(world: World) -> None:
    world.heartbeat(world.claim(), period_s=2.0).beat()
    assert world.watch(None) is None
    assert sum(world.slept) == pytest.approx(3 * 2.0)


@pytest.mark.parametrize("state", ["finished", "stopped", "left"])
def test_a_run_that_ended_is_known_at_once(world: World, state: str) -> None:
    assert world.watch() is None
    heart = world.heartbeat(world.claim()).start()
    heart.stop(state)
    heart.stop("other")  # the first word counts
    last = last_beat(world.storage)
    assert last is not None
    assert last.state == state
    assert (world.watch(), world.slept) == (None, [])


def test_the_driver_alone_shows_a_live_run_and_claims_fence_it_not(world: World) -> None:
    """While Ray starts, the last group's beat says that it has ended, or there is none yet."""
    world.heartbeat(world.claim()).start().stop("finished")
    driver = DriverBeat(world.storage, 3600.0).start()
    world.claim()
    world.meanwhile = driver.beat
    alive = world.watch()
    assert alive is not None
    assert (alive.state, alive.beat, len(world.slept)) == ("running", 1, 1)
    assert watch_alive(world.storage, 6.0, names=(FILE,), clock=world.clock, sleep=world.sleep) is None
    driver.stop("finished")
    assert world.watch() is None


def test_a_run_that_ends_while_watched_is_not_live(world: World) -> None:
    heart = world.heartbeat(world.claim()).start()
    world.meanwhile = lambda: heart.stop("finished")
    assert world.watch() is None
    assert len(world.slept) == 1


def test_a_damaged_beat_locks_nobody_out_and_a_period_of_years_keeps_nobody_waiting(world: World) -> None:
    world.storage.write("heartbeat.json", b'{"state": "run')
    assert world.watch() is None
    assert sum(world.slept) == pytest.approx(6.0)
    world.slept.clear()
    world.heartbeat(world.claim(), period_s=1e9).beat()
    assert world.watch(None) is None
    assert sum(world.slept) == pytest.approx(60.0)


def test_a_newer_view_fences_once_and_its_beat_is_not_overwritten(world: World) -> None:
    old = world.heartbeat(world.claim()).start()
    new = world.heartbeat(world.claim()).start()
    assert [old.beat(), old.beat(), new.beat()] == [False, False, True]
    assert world.fences == ["view 2 was claimed, this is view 1"]
    new.stop("finished")
    theirs = world.storage.read("heartbeat.json")
    old.stop("stopped")
    assert world.storage.read("heartbeat.json") == theirs
    late = world.heartbeat(1).start()
    assert late.fenced is not None
    assert world.storage.read("heartbeat.json") == theirs


def test_a_short_failure_is_borne_and_a_long_one_fences_with_its_reason(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    heart = world.heartbeat(world.claim())
    world.storage.broken = True
    with pytest.raises(StorageError, match="disk full"):
        heart.start()
    world.now_s += 59
    assert heart.beat()
    assert len(caplog.records) == 1
    world.storage.broken = False
    assert heart.beat()
    world.storage.broken = True
    for _ in range(5):
        world.now_s += 11
        assert heart.beat()
    assert world.fences == []
    world.now_s += 11
    assert not heart.beat()
    assert world.fences == ["no heartbeat written for 66 s, others may go on with the run: cannot write: disk full"]
    assert len(caplog.records) == 2  # one warning for each row of failures


def test_a_last_beat_that_cannot_be_written_is_logged_not_raised(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    heart = world.heartbeat(world.claim()).start()
    world.storage.broken = True
    heart.stop("finished")
    assert "last heartbeat not written" in caplog.text


def test_the_thread_beats_and_fences(world: World) -> None:
    view, fenced, reasons = world.claim(), threading.Event(), []
    heart = Heartbeat(world.storage, view, 0.001, on_fenced=lambda why: (reasons.append(why), fenced.set()))
    heart.start()
    with pytest.raises(RuntimeError, match="already"):
        heart.start()
    world.claim()
    assert fenced.wait(10)
    assert reasons == ["view 2 was claimed, this is view 1"]
    heart.stop("stopped")
    assert json.loads(world.storage.read("heartbeat.json"))["state"] == "running"
