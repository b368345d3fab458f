"""One thread, deterministic algorithms: what every test that compares bits needs."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")
