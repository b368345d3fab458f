"""The main job as a user runs it: its own process, its own Ray; killed, and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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


def start(tmp_path: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
    log = tmp_path / "driver.log"
    with log.open("w") as output:
        full = command("--storage", str(tmp_path / "runs"), *arguments)
        return subprocess.Popen(full, stderr=output, stdout=output, cwd=tmp_path), log


def until(what: str, done: Callable[[], bool], driver: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < deadline, f"{what}: not in time\n{log.read_text()}"
        time.sleep(0.05)


def test_the_main_job_as_it_is_and_killed_and_stopped_on_the_way(tmp_path: Path) -> None:
    """It learns and says what it did; then the same with SIGKILL on the driver, Ctrl-C, and another number of workers
    each time: the same digests."""
    printed, report = run(tmp_path)
    assert report["test_accuracy"] >= 0.97
    assert (report["workers"], report["virtual_workers"]) == (2, 4)
    assert report["upload_ratio"] > 20
    for shown in ("test accuracy:", "steps:", "bytes sent:", "residual norm:", "checkpoints:", "model file:",
                  "TensorBoard:", "go on:", report["digest"]):  # fmt: skip
        assert shown in printed

    driver, log = start(tmp_path, "--name", "disturbed")
    checkpoints = tmp_path / "runs" / "disturbed" / "run-0001" / "checkpoints"
    until("a checkpoint", lambda: bool(list(checkpoints.glob("*/manifest.json"))), driver, log)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    driver, log = start(tmp_path, "--name", "disturbed", "--workers", "3")
    until("a step", lambda: "step " in log.read_text(), driver, log)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(DEADLINE_S) == 130, log.read_text()
    assert "is unfinished in" in log.read_text()
    assert "the same command goes on" in log.read_text()
    _, resumed = run(tmp_path, "--name", "disturbed", "--workers", "1")
    assert resumed["resumed_from_step"] > 0
    assert (resumed["restarts"], resumed["starts"]) == (0, 3)
    assert resumed["digest"] == report["digest"]
    assert resumed["residual_digest"] == report["residual_digest"]
