"""The trainer on a real Ray: equal digests, kills, a user's exception, what the cluster lacks, no call on the path of
a step."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from groups import TinyTask, run_to_end, tiny_config, tiny_job
from torch import nn

from elastic_dgc import faults
from elastic_dgc.errors import ElasticDGCError, TaskFailed, UsageError
from elastic_dgc.tasks.task import Task
from elastic_dgc.trainer.elastic import ElasticTrainer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]


def fit(storage: Path, task: Task | None = None, **fields: Any) -> Any:
    config = tiny_config(storage=str(storage), name="run", **fields)
    return ElasticTrainer(task or TinyTask(), config, quiet=True).fit()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_to_end(tiny_job(str(tmp_path_factory.mktemp("undisturbed"))), [1])[0]


def test_two_workers_a_kill_and_three_fields_of_the_report(
    tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL in the exchange: Ray starts the group again, and nothing of it can be seen in the result."""
    plan = [{"point": "exchange", "view": 1, "attempt": 6, "worker": 1, "action": "kill"}]
    monkeypatch.setenv(faults.VARIABLE, json.dumps(plan))
    report, audit = tmp_path / "report.json", tmp_path / "audit.jsonl"
    result = fit(tmp_path / "runs", workers="2", report=str(report), audit=str(audit))
    assert result.digest == undisturbed["digest"]
    written = json.loads(report.read_text())
    assert written["residual_digest"] == undisturbed["residual_digest"]
    assert (written["restarts"], written["resumed_from_step"], written["workers"]) == (1, 6, 2)
    for name in ("digest", "test_accuracy", "steps", "skipped_steps", "upload_bytes", "wire_bytes", "dense_bytes",
                 "upload_ratio", "virtual_workers", "seconds", "images_per_s"):  # fmt: skip
        assert written[name] is not None, name
    assert audit.read_text().count("\n") == 1 + 12 * 4
    from safetensors.torch import load_file

    model = TinyTask().model()
    model.load_state_dict(load_file(written["model"]))  # strict: the plain file is a whole state dict


def test_a_finished_run_goes_on_with_more_epochs_and_else_starts_anew(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", workers="3")
    part = fit(tmp_path / "parts", workers="1", epochs=2, schedule=tiny_config().schedule)
    assert part.report["attempts"] == 8
    more = fit(tmp_path / "parts", workers="3", epochs=3)
    assert more.report["resumed_from_step"] == 8
    assert more.report["run_url"] == part.report["run_url"]
    assert more.report["attempts"] == whole.report["attempts"]
    again = fit(tmp_path / "parts", workers="3", epochs=3)
    assert again.report["run_url"] != more.report["run_url"]
    assert again.digest == whole.digest
    with pytest.raises(UsageError, match=r"seed: 0 there, 1 asked for"):
        fit(tmp_path / "parts", workers="1", epochs=3, seed=1)


class Failing(TinyTask):
    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if (batch[0] > 3.5).any():
            raise ZeroDivisionError("no such point")
        return super().loss(model, batch)


def test_a_users_exception_arrives_with_its_place(tmp_path: Path) -> None:
    told = (
        r"ZeroDivisionError: no such point \(virtual worker \d, attempt \d+, at .*test_on_ray.py.*; samples: rows \d+"
    )
    with pytest.raises(TaskFailed, match=told):
        fit(tmp_path, Failing(), workers="2")


class Drifting(TinyTask):
    def model(self) -> nn.Module:
        import os

        model = super().model()
        with torch.no_grad():
            next(model.parameters())[0, 0] = os.getpid()
        return model


def test_weights_that_do_not_come_from_the_seed_are_found_at_start(tmp_path: Path) -> None:
    """pytorch/examples#311: replicas that silently start from different weights."""
    with pytest.raises(ElasticDGCError, match=r"at start.*'parameter/0\.weight' on workers 0 and 1 of 2"):
        fit(tmp_path, Drifting(), workers="2")


def test_a_cluster_that_cannot_place_the_minimum_says_what_is_missing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_dgc.trainer.driving.SILENCE_S", 1.0)
    monkeypatch.setattr("elastic_dgc.trainer.driving.REPEAT_S", 1.0)
    config = tiny_config(storage=str(tmp_path), workers="4", cpus_per_worker=2, resource_wait_s=4.0)
    with pytest.raises(ElasticDGCError, match=r"can place 2 of the 4 workers .*2 CPU each; it has 4 CPU on 1 node\)"):
        ElasticTrainer(TinyTask(), config).fit()
    said = capfd.readouterr().err
    assert "waiting for up to" in said
    assert said.count("starting 4 workers on the cluster, with cpu: this takes about half a minute") == 1
    left = [thread.name for thread in threading.enumerate()]
    assert "ray train" not in left, "a thread that waits in Ray would crash the process when Ray is left (ray#31145)"
