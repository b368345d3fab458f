"""The example scripts run as written, and what the documentation shows is what they contain."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from ddp.ranks import run_ranks

ROOT = Path(__file__).parents[2]
PLAIN, COMPRESSED, REFERENCE = (ROOT / "jobs" / f"ddp_{name}.py" for name in ("plain", "dgc", "reference"))


def added_lines() -> list[str]:
    texts = [path.read_text().splitlines() for path in (PLAIN, COMPRESSED)]
    difference = [line for line in difflib.ndiff(*texts) if line[0] in "+-"]
    assert all(line.startswith("+ ") for line in difference)
    return [line[2:].strip() for line in difference]


def test_the_documented_difference_is_the_difference() -> None:
    (shown,) = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "ddp.md").read_text(), re.DOTALL)
    lines = shown.splitlines()
    assert [line[1:].strip() for line in lines if line.startswith("+")] == added_lines()
    assert len(added_lines()) == 3
    assert not any(line.startswith("-") for line in lines)
    plain = {line.strip() for line in PLAIN.read_text().splitlines()}
    assert all(line.strip() in plain for line in lines if not line.startswith(("+", "@")))


def torchrun(script: Path) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
def test_both_scripts_learn_under_torchrun() -> None:
    accuracy = []
    for script in (PLAIN, COMPRESSED):
        found = torchrun(script)
        accuracy.append(float(re.findall(r"test accuracy ([\d.]+)%", found)[0]))
    sent, dense = map(float, re.findall(r"([\d.]+) MB sent against ([\d.]+) MB dense", found)[0])
    assert min(accuracy) > 94, accuracy
    assert dense > 20 * sent


def reference(*arguments: str) -> str:
    """What a rank prints that runs the script in this process, with torchrun's environment."""
    rank, world = dist.get_rank(), dist.get_world_size()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = [probe.getsockname()[1]]
    dist.broadcast_object_list(port)
    dist.destroy_process_group()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port[0])}
    sys.argv = [str(REFERENCE), *arguments]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(REFERENCE), run_name="__main__")
    return output.getvalue()


@pytest.mark.processes
def test_the_reference_script_resumes_exactly_and_at_another_number_of_ranks(tmp_path: Path) -> None:
    options = ("--amp", "--epochs", "3", "--accumulate", "2", "--clip", "1.0")
    straight, other = run_ranks(2, reference, *options, "--output", str(tmp_path))
    digest = re.findall(r"digest (\w+)", straight)
    assert len(digest) == 1
    assert not other
    resumed = run_ranks(2, reference, *options, "--resume", str(tmp_path / "epoch-0"))[0]
    assert "epoch 1:" in resumed
    assert "epoch 0:" not in resumed
    assert re.findall(r"digest (\w+)", resumed) == digest
    assert "rank 0 of 3" in run_ranks(3, reference, *options, "--resume", str(tmp_path / "epoch-1"))[0]
