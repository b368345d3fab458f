"""Elastic workers: a node joins, a node is lost, and the digest is that of the undisturbed run."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from groups import TinyTask, run_to_end, tiny_config, tiny_job
from ray.cluster_utils import Cluster

from elastic_dgc.trainer import cluster as our_cluster
from elastic_dgc.trainer.elastic import ElasticTrainer

pytestmark = pytest.mark.ray

DEADLINE_S = 400.0
LONG: dict[str, Any] = {"epochs": 700, "evaluate_every": 700, "checkpoint_every_s": 1.0}


def until(what: str, done: Callable[[], bool], thread: threading.Thread) -> None:
    """Wait for a condition of the run in the storage, not for a time."""
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s"
        assert thread.is_alive(), f"the run ended before: {what}"
        threading.Event().wait(0.1)


def test_a_run_grows_and_shrinks_with_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    our_cluster.prepare_environment(state_tracking=False)
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    storage = tmp_path / "runs"
    views = storage / "run" / "run-0001" / "views"
    ended: dict[str, Any] = {}

    def fit() -> None:
        config = tiny_config(storage=str(storage), name="run", workers="1:4", resize_every_s=1.0, **LONG)
        ended["result"] = ElasticTrainer(TinyTask(), config, quiet=True).fit()

    def workers() -> list[int]:
        return [json.loads(path.read_text())["workers"] for path in sorted(views.glob("*.json"))]

    def saved_by(view: int) -> bool:
        return bool(list((storage / "run" / "run-0001" / "checkpoints").glob(f"v{view:06d}-*/manifest.json")))

    thread = threading.Thread(target=fit, daemon=True)
    try:
        thread.start()
        until("a first checkpoint", lambda: saved_by(1), thread)
        assert workers() == [1]
        added = cluster.add_node(**node)
        until("two workers", lambda: workers()[-1] == 2 and saved_by(len(workers())), thread)
        cluster.remove_node(added, allow_graceful=False)
        until("one worker again", lambda: workers()[-1] == 1, thread)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    finally:
        ray.shutdown()
        cluster.shutdown()
    undisturbed, _ = run_to_end(tiny_job(str(tmp_path / "undisturbed"), **LONG), [1])
    assert ended["result"].digest == undisturbed["digest"]
    assert ended["result"].report["residual_digest"] == undisturbed["residual_digest"]
    assert os.path.exists(ended["result"].report["model"])
