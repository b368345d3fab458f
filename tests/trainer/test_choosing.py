"""What the same command does, and what it says: no Ray, no workers."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from groups import TinyTask, tiny_config

from elastic_dgc.errors import RunIsLive, UsageError
from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.membership import alive, runs
from elastic_dgc.membership.heartbeat import DriverBeat, Heartbeat
from elastic_dgc.membership.view import claim_view
from elastic_dgc.step.config import ScheduleConfig
from elastic_dgc.trainer import choosing, mesh
from elastic_dgc.trainer.choosing import choose_run
from elastic_dgc.trainer.config import RunConfig

IDENTITY = {"seed": 0}
COSINE = ScheduleConfig(kind="cosine")


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []

    def __call__(self, text: str, level: int) -> None:
        self.lines.append((level, text))


def choose(folder: Path, told: Told | None = None, **fields: Any) -> runs.RunDirectory:
    config = tiny_config(**{"schedule": COSINE, **fields})
    return choose_run(open_storage(str(folder)), "run", IDENTITY, config, TinyTask(), told or Told())


@pytest.mark.parametrize(("kind", "stretched"), [("cosine", True), ("linear", True), ("constant", False)])
@pytest.mark.parametrize("finished", [True, False])
def test_more_epochs_say_what_becomes_of_the_learning_rate(
    tmp_path: Path, kind: Any, stretched: bool, finished: bool
) -> None:
    schedule = ScheduleConfig(kind=kind)
    run = choose(tmp_path, schedule=schedule, epochs=3)
    if finished:
        runs.record_result(run.files, {"state": "finished", "epochs": 3})
    told = Told()
    assert choose(tmp_path, told, schedule=schedule, epochs=7).number == 1
    [(_, line)] = told.lines
    assert "to 7" in line
    said = f"schedule ({kind}) is now stretched over 7 epochs, so this is not what 7 epochs from the start give"
    assert (said in line) == stretched
    assert ("another --name starts over" in line) == stretched


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch without waiting: another's beat advances at each look."""
    watch = alive.watch_alive
    monkeypatch.setattr(choosing, "watch_alive", lambda files: watch(files, 60.0, sleep=lambda s: files.beats()))


class Beating:
    """A storage in which somebody's beats go on while it is watched."""

    def __init__(self, storage: Any, *beats: Heartbeat) -> None:
        self._storage, self._beats = storage, beats

    def beats(self) -> None:
        for one in self._beats:
            one.beat()

    def child(self, path: str) -> Beating:
        return Beating(self._storage.child(path), *self._beats)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("on_record", ["unfinished", "finished", "extended"])
def test_a_live_run_is_refused_before_anything_is_said_or_written(tmp_path: Path, on_record: str) -> None:
    """Also while Ray starts, when only the driver beats, and whatever the same command would do otherwise."""
    run = choose(tmp_path, epochs=3)
    if on_record != "unfinished":
        runs.record_result(run.files, {"state": on_record, "epochs": 3})
    driver = DriverBeat(run.files, 3600.0).start()
    root, told = Beating(open_storage(str(tmp_path)), driver), Told()
    for epochs in (2, 3, 7):
        with pytest.raises(RunIsLive) as caught:
            choose_run(root, "run", IDENTITY, tiny_config(epochs=epochs), TinyTask(), told)  # type: ignore[arg-type]
        assert f"by process {os.getpid()} on {socket.gethostname()}" in str(caught.value)
    view = claim_view(run.files, run="r", workers=1, started_unix_s=0.0, resumed_from=None, hosts=["h"]).number
    worker = Heartbeat(run.files, view, 3600.0, on_fenced=lambda reason: None).start()
    worker.attempt = 41
    worker.beat()
    with pytest.raises(RunIsLive, match=r"first worker: process \d+ on \S+, at attempt 41"):
        choose_run(root, "run", IDENTITY, tiny_config(epochs=3), TinyTask(), told)  # type: ignore[arg-type]
    assert told.lines == []
    assert os.listdir(tmp_path / "run") == ["run-0001"]
    with pytest.raises(UsageError, match="seed: 0 there, 1 asked for"):  # without watching
        choose_run(open_storage(str(tmp_path)), "run", {"seed": 1}, RunConfig(), TinyTask(), told)
    driver.stop("stopped")
    worker.stop("stopped")
    assert choose(tmp_path, epochs=7).number == 1


def test_changed_code_of_the_task_is_one_warning_and_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(tmp_path)
    for code, warned in [("other", True), (None, False)]:
        monkeypatch.setattr(choosing, "code_fingerprint", lambda task, code=code: code)
        told = Told()
        assert choose(tmp_path, told).number == 1
        warnings = [text for level, text in told.lines if level == logging.WARNING]
        assert len(warnings) == warned
        if warned:
            assert "the code of the task has changed since the run was begun (20" in warnings[0]
            assert "another --name starts over" in warnings[0]


def test_a_restart_is_a_start_of_the_same_command_after_a_failure(tmp_path: Path) -> None:
    """Not the first start, not one of another command (after Ctrl-C), not one that made room for another size."""
    storage = open_storage(str(tmp_path))

    def start(driver: str) -> bool:
        claimed = mesh.claim(str(tmp_path), mesh.Start("id", driver, 2, ("h",), 0.0), limit=5)
        assert claimed.view is not None
        return claimed.view.after_failure

    def end(view: int, state: str) -> None:
        Heartbeat(storage, view, 3600.0, on_fenced=lambda reason: None).start().stop(state)

    assert not start("a")
    end(1, alive.STOPPED)
    assert not start("b")
    assert start("b")  # view 2 was killed: it left no word
    end(3, alive.LEFT)
    assert not start("b")
    end(4, alive.STOPPED)
    assert start("b")
