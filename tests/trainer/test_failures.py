"""What goes wrong beside a killed worker: a save that fails, samples that are no numbers, a model that diverges."""

from __future__ import annotations

import re
from pathlib import Path

import groups
import pytest
from groups import run_group, run_to_end, tiny_job
from mischief import (
    Exploding,
    ExplodingAtThree,
    FailingEvaluation,
    WithABadPoint,
    WithoutItsLibrary,
    work_on_a_full_disk,
    work_with_a_memory_that_forgets,
)

from elastic_dgc.data.audit import verify
from elastic_dgc.keeping import checkpoint
from elastic_dgc.keeping.storage import open_storage

pytestmark = pytest.mark.processes


def test_a_save_that_fails_is_one_line_for_everyone_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [{"point": "vote", "view": 1, "attempt": 5, "worker": 1}]
    job = tiny_job(str(tmp_path / "full"), plan)
    assert run_group(job, 2)[1] == ("died", -9)
    storage = open_storage(job.run_url)
    newest = checkpoint.manifests(storage)[0][0]
    with monkeypatch.context() as patched:
        patched.setattr(groups, "_work", work_on_a_full_disk)
        ends = run_group(job, 2)
    for end in ends:
        assert end[:2] == ("raised", "StorageError"), ends
        assert "owned-0000" in end[2]
        assert "\n" not in end[2]
    assert checkpoint.manifests(storage)[0][0] == newest
    outcome, _ = run_to_end(job, [3])
    undisturbed, _ = run_to_end(tiny_job(str(tmp_path / "undisturbed")), [1])
    assert outcome["resumed_from_step"] == 5
    assert outcome["digest"] == undisturbed["digest"]


def test_a_sample_that_is_no_number_skips_its_step_on_everyone_and_is_named(tmp_path: Path) -> None:
    outcomes = []
    for workers in (1, 3):
        job = tiny_job(str(tmp_path / str(workers)), task=WithABadPoint(), audit="/unused")
        outcomes.append(run_to_end(job, [workers])[0])
        lines = open_storage(job.run_url).read("audit.jsonl").decode().splitlines()
        result = verify(lines)
        assert result.ok, result.problems
        assert len(result.skipped_rows) == 3
        assert all(7 in rows for rows in result.skipped_rows.values())
    assert [one["skipped_steps"] for one in outcomes] == [3, 3]
    assert outcomes[0]["attempts"] == 12
    assert outcomes[0]["steps"] == 9
    for name in ("digest", "residual_digest", "evaluations"):
        assert outcomes[0][name] == outcomes[1][name]


def test_a_run_that_diverges_stops_with_its_diagnosis_and_its_last_checkpoint(tmp_path: Path) -> None:
    job = tiny_job(str(tmp_path), task=Exploding())
    ends = run_group(job, 2)
    for end in ends:
        assert end[:2] == ("raised", "Diverged"), ends
        assert "3 attempts in a row were skipped" in end[2]
        assert "samples of virtual worker 0: rows " in end[2]
    storage = open_storage(job.run_url)
    found, problems = checkpoint.manifests(storage)
    place = f"attempt {found[0].attempt} in {storage.url(found[0].directory)}"
    assert all(f"the last verified checkpoint, of {place}, is untouched" in end[2] for end in ends)
    assert not problems


def test_a_restart_is_no_way_around_the_limit_of_skips_and_it_is_said_which_were_before_it(tmp_path: Path) -> None:
    """The last checkpoint stands in the middle of the skips: a run that goes on from it ends where one that was never
    stopped would."""
    job = tiny_job(str(tmp_path), task=ExplodingAtThree())
    for size, said in (2, ""), (3, ", 2 of them before the checkpoint that the workers went on from"):
        for end in run_group(job, size):
            assert end[:2] == ("raised", "Diverged")
            assert f"3 attempts in a row were skipped{said}, the last is attempt 5: all 4 virtual workers" in end[2]


def test_what_the_users_evaluation_raises_is_told_with_its_samples(tmp_path: Path) -> None:
    for end in run_group(tiny_job(str(tmp_path), task=FailingEvaluation()), 2):
        assert end[:2] == ("raised", "TaskFailed")
        assert re.match(r"IndexError: 49 \(in the evaluation, attempt 4, at .*mischief.py:\d+ in evaluate; ", end[2])
        assert end[2].endswith("; samples: rows 48, 49)")


def test_what_making_the_model_raises_on_a_worker_ends_the_run_with_its_place(tmp_path: Path) -> None:
    for end in run_group(tiny_job(str(tmp_path), task=WithoutItsLibrary()), 1):
        assert end[:2] == ("raised", "TaskFailed")
        assert re.match(r"worker 0 on \S+, making the model: ModuleNotFoundError: No module named 'not_there'", end[2])
        assert re.search(r"mischief.py:\d+ in model\); install it on every node", end[2])


def test_owned_state_that_memory_forgot_is_mended_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one skip each, the same on everyone, at any number of workers."""
    monkeypatch.setattr(groups, "_work", work_with_a_memory_that_forgets)
    outcomes = [run_to_end(tiny_job(str(tmp_path / str(workers))), [workers])[0] for workers in (1, 3)]
    for name in ("digest", "residual_digest", "evaluations"):
        assert outcomes[0][name] == outcomes[1][name]
    for one in outcomes:
        assert (one["attempts"], one["skipped_steps"], one["healed"]) == (12, 2, 2)
