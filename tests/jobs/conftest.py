"""The job that a test file is named after."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`test_x.py` gets the module `jobs/x.py`, found by name, as by the workers' processes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "jobs"))
    return importlib.import_module(request.path.stem.removeprefix("test_"))
