"""The script that measures what the protocol costs runs to its end, and its parts are apart."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "jobs" / "protocol_cost.py"


@pytest.mark.processes
def test_it_says_what_a_step_and_what_the_protocol_take() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--attempts", "5", "--batch", "16"],
        capture_output=True, text=True, timeout=240, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(
        r"^2 attempts of 16 images on 2 workers: ([\d.]+) ms .*, ([\d.]+) ms in the protocol", done.stdout
    )
    assert found is not None, done.stdout
    step, protocol = map(float, found.groups())
    assert step > 0
    assert protocol > 0
