"""`ray job submit --working-dir . -- python jobs/train.py ...` on a running cluster."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.job_submission import JobStatus, JobSubmissionClient

from elastic_dgc.trainer import cluster

pytestmark = pytest.mark.ray

REPOSITORY = Path(__file__).parents[2]
DEADLINE_S = 300.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def submit(client: JobSubmissionClient, entrypoint: str, deadline: float) -> str:
    """A dashboard that has just started has no agent to take a job yet: try until it has."""
    while True:
        try:
            return client.submit_job(
                entrypoint=entrypoint,
                runtime_env={"working_dir": str(REPOSITORY), "excludes": [".git", ".venv", "tests"]},
            )
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(1)


def test_a_submitted_job_trains_with_plain_progress_lines(tmp_path: Path) -> None:
    cluster.prepare_environment(state_tracking=True)
    # Ports of its own: a dashboard's agent that finds its port taken gives up, and no job is ever taken.
    head = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 3, "object_store_memory": cluster.OBJECT_STORE_BYTES, "include_dashboard": True,
            "dashboard_port": free_port(), "dashboard_agent_listen_port": free_port(),
        },
    )  # fmt: skip
    context = ray.init(address=head.address, log_to_driver=False, logging_level="error")
    try:
        client = JobSubmissionClient(f"http://{context.dashboard_url}")
        report = tmp_path / "report.json"
        arguments = f"--epochs 2 --workers 2 --storage {tmp_path}/runs --report {report}"
        deadline = time.monotonic() + DEADLINE_S
        job = submit(client, f"{sys.executable} jobs/train.py {arguments}", deadline)
        while not (status := client.get_job_status(job)).is_terminal():
            assert time.monotonic() < deadline, client.get_job_logs(job)
            time.sleep(0.5)
        logs = client.get_job_logs(job)
        assert status == JobStatus.SUCCEEDED, logs
    finally:
        ray.shutdown()
        head.shutdown()
    assert "epoch 2 of 2: test accuracy" in logs
    assert "digest:" in logs
    assert "\x1b[" not in logs  # no terminal, no bar
    assert json.loads(report.read_text())["steps"] == 46
