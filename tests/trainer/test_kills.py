"""A killed worker costs nothing: SIGKILL at every point of a run, at another number of workers afterwards, and the
weights, the residuals and the audit are those of the undisturbed run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from groups import run_to_end, tiny_job

from elastic_dgc.data.audit import verify
from elastic_dgc.keeping.storage import open_storage

pytestmark = pytest.mark.processes

SAME = ("digest", "residual_digest", "residual_norm", "test_accuracy", "evaluations", "steps", "attempts",
        "upload_bytes", "dense_bytes", "samples")  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    job = tiny_job(str(tmp_path_factory.mktemp("undisturbed")), audit="/unused")
    return run_to_end(job, [1])[0]


def same(outcome: dict[str, Any], undisturbed: dict[str, Any]) -> None:
    assert {name: outcome[name] for name in SAME} == {name: undisturbed[name] for name in SAME}


@pytest.mark.parametrize(("workers", "transport"), [(2, "auto"), (3, "tree"), (4, "auto"), (5, "tree")])
def test_neither_the_number_of_workers_nor_the_route_changes_the_result(
    workers: int, transport: str, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    outcome, history = run_to_end(tiny_job(str(tmp_path), transport=transport), [workers])
    same(outcome, undisturbed)
    assert len(history) == 1
    assert outcome["wire_bytes"] > 0


KILLS = [
    ("start", -1, 1),
    ("forward", 0, 0),
    ("vote", 3, 1),
    ("vote", 7, 0),
    ("exchange", 2, 1),
    ("exchange", 8, 0),
    ("apply", 6, 1),
    ("apply", 9, 0),
    ("commit", 6, 0),
    ("commit", 4, 1),
    ("evaluate", 4, 1),
    ("evaluate", 8, 0),
    ("checkpoint", 3, 1),
    ("checkpoint", 4, 0),
    ("manifest", 7, 0),
    ("manifest", 1, 0),
    ("finish", 12, 0),
    ("finish", 12, 1),
]


@pytest.mark.parametrize(("point", "attempt", "worker"), KILLS)
def test_a_killed_worker_costs_nothing(
    point: str, attempt: int, worker: int, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    """One checkpoint a step: the next group, of another size, goes on from the one before the kill."""
    plan = [{"point": point, "view": 1, "attempt": attempt, "worker": worker, "action": "kill"}]
    job = tiny_job(str(tmp_path), plan, audit="/unused")
    outcome, history = run_to_end(job, [2, 3])
    assert history[0][worker] == ("died", -9)
    assert len(history) == 2
    same(outcome, undisturbed)
    assert outcome["restarts"] == 1
    lines = open_storage(job.run_url).read("audit.jsonl").decode().splitlines()
    result = verify(lines)
    assert result.ok, result.problems
    assert (result.complete_epochs, result.rows) == (3, 3 * 62)


@pytest.mark.parametrize("transport", ["all-to-all", "collectives"])
@pytest.mark.parametrize("exchange", ["dense", "dense-bf16"])
def test_the_baselines_keep_the_promise(exchange: str, transport: str, tmp_path: Path) -> None:
    """Whichever way whole gradients go, a worker that is killed among them included."""
    first, _ = run_to_end(tiny_job(str(tmp_path / "a"), exchange=exchange), [1])
    plan = [{"point": "exchange", "view": 1, "attempt": 6, "worker": 1}]
    second, history = run_to_end(tiny_job(str(tmp_path / "b"), plan, exchange=exchange, transport=transport), [3, 2])
    assert len(history) == 2
    same(second, first)


def test_without_a_checkpoint_in_between_a_kill_starts_over(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    plan = [{"point": "vote", "view": 1, "attempt": 7, "worker": 1}]
    outcome, _ = run_to_end(tiny_job(str(tmp_path), plan, checkpoint_every_s=3600.0), [2])
    same(outcome, undisturbed)
    assert outcome["views"] == [[2, 0]]
    assert outcome["resumed_from_step"] is None


def test_many_kills_in_one_run(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    plan = [
        {"point": "exchange", "view": 1, "attempt": 2, "worker": 0},
        {"point": "manifest", "view": 2, "attempt": 5, "worker": 0},
        {"point": "apply", "view": 3, "attempt": 8, "worker": 2},
        {"point": "finish", "view": 4, "attempt": 12, "worker": 0},
    ]
    outcome, history = run_to_end(tiny_job(str(tmp_path), plan), [2, 3, 4, 1, 2])
    assert len(history) == 5
    same(outcome, undisturbed)


def test_a_run_that_dies_again_and_again_at_the_same_place_is_given_up(tmp_path: Path) -> None:
    plan = [{"point": "forward", "attempt": 4, "worker": 1}]
    job = tiny_job(str(tmp_path), plan)
    from groups import run_group

    ends = [run_group(job, 2, limit=3) for _ in range(5)]
    assert all(end[1] == ("died", -9) for end in ends[:4])
    assert {one[0] for one in ends[4]} == {"raised"}
    assert "3 restarts in a row made no checkpoint after attempt 4: giving up" in ends[4][0][2]
