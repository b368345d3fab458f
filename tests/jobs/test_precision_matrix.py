"""Accuracy on the digits in six named combinations of precision, exchange, momentum and accumulation; and the script
that trains all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from groups import run_to_end

from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.membership import runs
from elastic_dgc.trainer import job as jobs

JOBS = Path(__file__).parents[2] / "jobs"


def test_the_matrix_is_whole_and_every_name_means_its_settings(script: Any) -> None:
    names = script.names()
    assert len(names) == len(set(names)) == 36
    assert set(script.QUICK) <= set(names)
    found = set()
    for name in names:
        _, config = script.job_of(name, "convolutions", 0, None)
        parts = (config.precision, config.exchange, config.optimizer.nesterov, config.accumulation)
        found.add(parts)
        kind = "nesterov" if parts[2] else "plain"
        assert name == f"{parts[0]}-{parts[1]}-{kind}-{parts[3]}"
    assert len(found) == 36


@pytest.mark.processes
def test_six_combinations_learn_the_digits(script: Any, tmp_path: Path) -> None:
    """The whole trainer in two processes over TCP, without Ray, which would start six times as long as they train."""
    for name in script.QUICK:
        task, config = script.job_of(name, "perceptron", 0, script.QUICK_EPOCHS)
        source = jobs.training_source(task, config)
        identity = json.loads(json.dumps(jobs.identity_of(task, config, source, "cpu")))
        root = open_storage(str(tmp_path / name))
        made = runs.RunDirectory.create(root, "run", identity=identity, epochs=config.epochs, settings={}, versions={})
        url = root.child(made.place).url()
        outcome, _ = run_to_end(jobs.Job(task, config, "ab" * 16, name, url, "cpu", b"s" * 32, identity), [2])
        assert outcome["test_accuracy"] >= 0.95, name
        assert outcome["skipped_steps"] == 0, name


@pytest.mark.ray
def test_the_script_trains_one_on_ray_and_says_which_stay_below(tmp_path: Path) -> None:
    name, to = "bf16-dgc-nesterov-3", tmp_path / "figures.json"
    options = ["--quick", "--only", name, "--epochs", "2", "--least", "1.0", "--json", str(to)]
    command = [sys.executable, str(JOBS / "precision_matrix.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 1, done.stderr
    assert f"below 100%: {name}" in done.stdout
    (row,) = json.loads(to.read_text())[name]
    assert row["steps"] == 48
    assert 0.5 < row["test_accuracy"] < 1
