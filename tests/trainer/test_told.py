"""What a user is told of a run: a lost group, skipped attempts, progress, the closing lines."""

from __future__ import annotations

import logging
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import worker

from elastic_dgc.cli.summary import summary
from elastic_dgc.errors import DataError, ElasticDGCError
from elastic_dgc.step.compute import describe
from elastic_dgc.step.state import Counters
from elastic_dgc.trainer import cluster
from elastic_dgc.trainer.config import RunConfig
from elastic_dgc.trainer.diagnosis import State, failed, going_on_skipping, mend, scale_moved, skipped, skips_in_a_row
from elastic_dgc.trainer.elastic import Result
from elastic_dgc.trainer.loop import Signals, Training
from elastic_dgc.trainer.losses import Loss, Losses
from elastic_dgc.trainer.monitor import MonitorState
from elastic_dgc.trainer.progress import Display
from elastic_dgc.trainer.words import count, workers_range

ENDED = "its connection ended: the process died or was killed, see that worker's log"
LEFT = "it ended its part and left, after an error of its own or because it was done; see its log"


def at(view: int, attempt: int, resumed: int = 0) -> dict[str, Any]:
    return {"view": view, "attempt": attempt, "resumed": resumed, "end": 345}


def test_a_lost_worker_is_one_line_with_what_it_costs() -> None:
    losses = Losses()
    assert losses.follow({"view": 1}, []) is None
    assert losses.follow(at(1, 0), []) is None
    assert losses.follow(at(1, 80), []) is None
    told = [Loss(2, "b", LEFT, 85), Loss(1, "a", ENDED, 85)]
    assert losses.follow({"view": 2, "phase": "starting"}, told) is None
    assert losses.follow(at(2, 60, 60), told) == (
        "worker lost (rank 1 on a: its connection ended): the group starts again from attempt 60 of 345; "
        "25 attempts are computed again"
    )
    assert losses.follow(at(2, 61, 60), told) is None


def test_losses_without_survivors_and_without_checkpoints_and_none_where_a_group_made_room() -> None:
    losses = Losses()
    losses.follow(at(1, 7), [])
    line = losses.follow(at(2, 1, 0), [])  # the first steps are done already when the driver looks
    assert line == (
        "all workers were lost: the group starts again from the beginning, there is no checkpoint yet; "
        "7 attempts are computed again"
    )
    losses.follow(at(2, 9), [])
    assert losses.follow(at(3, 9, 9), []) is None
    line = losses.follow(at(4, 9, 9), [Loss(0, "a", "it was silent for 30 s: frozen", 9)])
    assert line is not None
    assert "(rank 0 on a: it was silent for 30 s)" in line
    assert line.endswith("nothing is computed again")


def event(text: str, level: int = logging.WARNING, once: str | None = None) -> dict[str, Any]:
    return {"level": level, "text": text, "once": once}


def test_what_several_workers_warn_of_is_one_line_in_each_group() -> None:
    monitor = MonitorState()
    same = [event(f"[worker {k}] lost rank 3: {ENDED}") for k in range(3)]
    monitor.push(at(1, 5), same)
    monitor.push(at(2, 5), [same[0], event("[worker 0] epoch 1", logging.INFO), event("[worker 1] x", once="corrupt")])
    monitor.push(at(2, 6), [event("[worker 0] epoch 1", logging.INFO), event("[worker 2] y", once="corrupt")])
    texts = [one["text"] for one in monitor.poll(0).events]
    assert texts == [same[0]["text"]] * 2 + ["[worker 0] epoch 1", "[worker 1] x", "[worker 0] epoch 1"]


REASONS = [f"virtual worker {k}: gradient of {'x' * 300} (5 of 64 values not finite), loss nan" for k in range(64)]


@pytest.mark.parametrize("bad", [[3], [0, 5], list(range(64))])
def test_a_skipped_attempt_is_one_short_line_with_samples_of_the_first(bad: list[int]) -> None:
    asked = []

    def rows_of(k: int) -> list[int]:
        asked.append(k)
        return list(range(1_000_000, 1_000_032))

    line = skipped([REASONS[k] for k in bad], bad, 64, rows_of)
    assert len(line) <= 280
    assert asked == [bad[0]]
    assert line.endswith("1000006, 1000007 and 24 more")
    assert ("all 64 virtual workers" in line) == (len(bad) == 64)
    assert ("2 of 64 virtual workers" in line) == (len(bad) == 2)
    assert scale_moved(1024, 512, range(20)).startswith(
        "gradients of virtual worker 0, 1, 2, 3, 4, 5, 6, 7 ... overflow"
    )
    assert skipped(["the update makes w not finite"], [], 4, rows_of) == "the update makes w not finite"


def test_the_likeliest_mend_comes_first_and_useless_ones_not_at_all() -> None:
    state = State(lr=0.5, loss_scale=1.0, overflowed=False, applied=9, largest=2.0)
    assert mend(state, True, "attempt 7 in /runs") == (
        "look at these samples, or try a lower learning rate, such as 0.05 instead of 0.5; "
        "the last verified checkpoint, of attempt 7 in /runs, is untouched"
    )
    scaled = replace(state, loss_scale=2.0**24, overflowed=True)
    assert mend(scaled, False, None).startswith("try a loss scale below 16777216, or try a lower learning rate")
    assert "loss scale" not in mend(replace(scaled, overflowed=False), True, None)
    assert mend(replace(state, applied=0), True, None) == "look at these samples; the run has no checkpoint yet"
    absurd = mend(replace(state, lr=1e30, largest=2e29), False, "attempt 3 in /runs")
    assert "such as 0.1 instead of 1e+30" in absurd
    assert absurd.endswith("but parameters reach 2e+29 there too: begin anew, under another --name")


def described(error: Exception) -> str:
    """As a worker describes what a loader's thread raised."""

    def load() -> None:
        raise error

    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(load).result()
        except Exception as raised:  # noqa: BLE001 - whatever it is
            return describe(raised, 2, 17)
    raise AssertionError


def test_an_error_of_the_package_has_no_class_and_no_place_and_a_users_own_keeps_both() -> None:
    text = "/d: corrupt image in train-00000.parquet, row 3: it has no bytes; mend it (--skip-corrupt)"
    error = DataError(text)
    error.__notes__ = ["while loading rows 3, 4 for virtual worker 2 in attempt 17 (epoch 0)"]
    assert failed(described(error)) == f"{text} (virtual worker 2, attempt 17)"
    own = failed(described(NameError("name 'foo' is not defined")))
    assert own.startswith("NameError: name 'foo' is not defined (virtual worker 2, attempt 17, at ")
    assert f"{__file__}:" in own
    assert own.endswith(" in load)")
    noted = KeyError("x")
    noted.__notes__ = ["in sample 3 of the data set D"]
    inside = "KeyError: 'x' (virtual worker 0, attempt 1, at {}:58 in run; in sample 3 of the data set D)"
    assert failed(inside.format(traceback.__file__)) == inside.replace(", at {}:58 in run", "")
    assert failed(inside.format("/home/me/task.py")) == inside.format("/home/me/task.py")
    assert failed("anything else") == "anything else"
    assert failed(described(ElasticDGCError("said"))) == "said (virtual worker 2, attempt 17)"


def test_an_error_of_the_users_code_names_the_samples_it_had_in_hands() -> None:
    try:
        raise IndexError("index 10 is out of bounds")
    except IndexError as error:
        told = failed(describe(error, 2, 17, range(40)))
    assert told.startswith(f"IndexError: index 10 is out of bounds (virtual worker 2, attempt 17, at {__file__}:")
    assert told.endswith("; samples: rows " + ", ".join(map(str, range(32))) + " and 8 more)")


def test_skips_in_a_row_that_a_checkpoint_remembers_are_told_apart() -> None:
    assert skips_in_a_row(3, 3, " at loss scale 2") == "3 attempts in a row were skipped at loss scale 2"
    assert skips_in_a_row(3, 20) == "3 attempts in a row were skipped"
    assert skips_in_a_row(3, 1).startswith("3 attempts in a row were skipped, 2 of them before the checkpoint")
    assert "skipped, which counts: 1 more in a row ends the run (--max-skips is 3)" in going_on_skipping(2, 3)


def progress(attempt: int, **changes: Any) -> dict[str, Any]:
    base = {"phase": "training", "view": 1, "attempt": attempt, "end": 9, "epoch": 1, "epochs": 3, "loss": 1.0,
            "images_per_s": 10.0, "workers": 2, "upload_ratio": 31.7}  # fmt: skip
    return {**base, **changes}


def test_progress_says_nothing_while_nobody_trains_and_nothing_that_is_not_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    display, now = Display(), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for attempt, changes in [(1, {}), (2, {}), (2, {}), (3, {"workers": 1, "upload_ratio": 0.0})]:
        display.show(progress(attempt, **changes))
        now[0] += 5 if attempt == 1 else 20  # the second comes too early, and is old when it would not be
    assert capsys.readouterr().err.splitlines() == [
        "step 1/9 (epoch 1/3): loss 1.000, 10 images/s, 2 workers, upload 32x less than dense",
        "step 3/9 (epoch 1/3): loss 1.000, 10 images/s, 1 worker",
    ]


def test_the_epoch_of_a_step_is_the_one_whose_evaluation_follows() -> None:
    told: list[dict[str, Any]] = []
    decision = SimpleNamespace(loss=1.0)
    outcome: Any = SimpleNamespace(decision=decision, lr=0.1, plan=SimpleNamespace(density=1.0))
    for attempts in (1, 4, 5, 8, 12):
        training: Any = SimpleNamespace(
            replica=SimpleNamespace(counters=Counters(attempt=attempts)), figures=None, end=12,
            job=SimpleNamespace(config=SimpleNamespace(epochs=3)), order=SimpleNamespace(steps_per_epoch=4),
            group=SimpleNamespace(members=SimpleNamespace(size=1), view=1), signals=Signals(progress=told.append),
            _rate=SimpleNamespace(per_second=lambda: 1.0),
        )  # fmt: skip
        Training._show(training, outcome)
    assert [one["epoch"] for one in told] == [1, 1, 2, 2, 3]


def test_what_ray_prints_of_a_dead_worker_stays_off_the_progress_unless_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(address_info={})
    monkeypatch.setattr(ray, "init", lambda **options: context)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for verbose in (False, True):  # two texts: Ray keeps what it takes for a repetition to itself
        line = "A worker died, as was asked for" if verbose else "A worker died"
        assert cluster.connect(RunConfig(), None, dashboard=False, verbose=verbose).owned
        worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
        assert ("A worker died" in capsys.readouterr().out) == verbose
        cluster.disconnect()
        assert worker._worker_logs_enabled


REPORT: dict[str, Any] = {
    "test_accuracy": 0.5, "steps": 9, "skipped_steps": 0, "restarts": 1, "corrupt_samples": 0, "upload_bytes": 1000,
    "dense_bytes": 31700, "upload_ratio": 31.7, "wire_bytes": 2000, "residual_norm": 1.0, "digest": "d", "epochs": 3,
    "healed": 0, "exchange": "dgc", "precision": "fp32", "loss_scale": 1.0, "checkpoints": "/c",
    "model": "/m", "tensorboard": "/t",
}  # fmt: skip


def lines(**changes: Any) -> dict[str, str]:
    found = summary(Result("run", {**REPORT, **changes}), ["elastic-dgc", "train"])
    return {name: text.strip() for name, _, text in (line.partition(":") for line in found)}


def test_the_closing_lines_say_what_is_so() -> None:
    usual = lines()
    assert usual["steps"].endswith("0 skipped, 1 restart")
    assert usual["bytes sent"].startswith("1 kB against 31.7 kB dense (31.7 times less")
    assert not {"corrupt", "audit", "report"} & usual.keys()
    dense = lines(upload_ratio=1.0, wire_bytes=0, corrupt_samples=3, audit_file="/a.jsonl", report_file="/r.json")
    assert dense["bytes sent"] == "1 kB, whole gradients"
    assert dense["on the wire"] == "nothing, one worker"
    assert dense["corrupt"] == "3 samples left out"
    assert (dense["audit"], dense["report"]) == ("/a.jsonl", "/r.json")
    half = lines(precision="fp16", loss_scale=512.0, healed=2, exchange="dense-bf16", upload_ratio=2.0)
    assert half["loss scale"] == "512 at the end, in fp16"
    assert half["healed"].startswith("2 parts of the state")
    assert half["bytes sent"].endswith("(2.0 times less over the whole run)")


def test_numbers_have_their_plural() -> None:
    assert [count(n, "worker") for n in (1, 2, 0)] == ["1 worker", "2 workers", "0 workers"]
    assert [workers_range(1, 1), workers_range(1, 4)] == ["1 worker", "1 to 4 workers"]
