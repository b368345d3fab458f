"""One local Ray for the tests that need one: as many logical CPUs as they ask for, no dashboard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from elastic_dgc.trainer import cluster

TESTS = str(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """Workers import the tests' own modules (tasks live in `groups`) from the tests' folder."""
    cluster.prepare_environment(state_tracking=False)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = TESTS
    ray.init(
        address="local", num_cpus=4, object_store_memory=cluster.OBJECT_STORE_BYTES, include_dashboard=False,
        log_to_driver=False, logging_level="error",
    )  # fmt: skip
    yield
    ray.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
