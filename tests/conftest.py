"""One thread, deterministic algorithms: what tests that compare bits need; and a stack for what must be closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
from hypothesis import settings

settings.register_profile("here", deadline=None)  # a loaded machine is no failure
settings.load_profile("here")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is entered here is left at the end of the test."""
    with ExitStack() as stack:
        yield stack
