"""The main job as a user runs it: its own process, its own Ray; killed, and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ray

DEADLINE_S = 300.0


def command(*arguments: str) -> list[str]:
    start = "from elastic_dgc.cli.main import main; main()"
    return [sys.executable, "-c", start, "train", "--no-dashboard", *arguments]


def run(tmp_path: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    report = tmp_path / "report.json"
    done = subprocess.run(
        command("--storage", str(tmp_path / "runs"), "--report", str(report), *arguments),
        capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(report.read_text())


def test_the_main_job_learns_and_says_what_it_did(tmp_path: Path) -> None:
    """And SIGKILL on its driver half way, then the same command with another number of workers: the same digest."""
    printed, report = run(tmp_path)
    assert report["test_accuracy"] >= 0.97
    assert report["workers"] == 2
    assert report["virtual_workers"] == 4
    assert report["upload_ratio"] > 20
    for shown in ("test accuracy:", "steps:", "bytes sent:", "residual norm:", "checkpoints:", "model file:",
                  "TensorBoard:", "go on:", report["digest"]):  # fmt: skip
        assert shown in printed

    arguments = ("--name", "killed", "--storage", str(tmp_path / "runs"))
    log = tmp_path / "killed.log"
    with log.open("w") as output:
        driver = subprocess.Popen(command(*arguments), stderr=output, stdout=output, cwd=tmp_path)
    deadline = time.monotonic() + DEADLINE_S
    checkpoints = tmp_path / "runs" / "killed" / "run-0001" / "checkpoints"
    while not list(checkpoints.glob("*/manifest.json")):
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    _, resumed = run(tmp_path, "--name", "killed", "--workers", "3")
    assert resumed["resumed_from_step"] > 0
    assert resumed["digest"] == report["digest"]
    assert resumed["residual_digest"] == report["residual_digest"]


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    short = ("--epochs", "3", "--name", "stopped")
    _, whole = run(tmp_path, "--epochs", "3", "--name", "whole")
    log = tmp_path / "stopped.log"
    with log.open("w") as output:
        driver = subprocess.Popen(
            command(*short, "--storage", str(tmp_path / "runs")), stderr=output, stdout=output, cwd=tmp_path
        )
    deadline = time.monotonic() + DEADLINE_S
    while "step " not in log.read_text():
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(DEADLINE_S) == 130, log.read_text()
    assert "the same command goes on" in log.read_text()
    _, resumed = run(tmp_path, *short, "--workers", "1")
    assert 0 < resumed["resumed_from_step"] < 69
    assert resumed["digest"] == whole["digest"]
