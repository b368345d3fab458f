"""Ray Train's backend for this trainer: brings a group's workers together, and lets them save before a resize."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from elastic_dgc.trainer import mesh

LEAVE_S = 25.0  # Ray waits for on_shutdown without a limit; this is ours


@dataclass
class MeshConfig(BackendConfig):
    """What the backend needs to claim a view: the run's storage, its id, which start of the driver this is."""

    run_url: str = ""
    run: str = ""
    driver: str = ""
    max_restarts: int = 5

    @property
    def backend_cls(self) -> type[Backend]:
        return MeshBackend

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class MeshBackend(Backend):
    """Opens a listener in every worker, claims a view, and tells everyone where the others are. Results of `execute`
    come in order of rank."""

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, MeshConfig)
        config = backend_config
        opened = worker_group.execute(mesh.open_listener)
        hosts = tuple(host for _, _, host in opened)
        start = mesh.Start(config.run, config.driver, len(opened), hosts, time.time())
        claimed = worker_group.execute_single(0, mesh.claim, config.run_url, start, config.max_restarts)
        worker_group.execute(mesh.set_mesh, replace(claimed, addresses=tuple((ip, port) for ip, port, _ in opened)))

    def on_shutdown(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """Let survivors save and leave. A worker that is dead, or does not end in time, is not waited for."""
        refs = worker_group.execute_async(mesh.leave, LEAVE_S - 5)
        ray.wait(refs, num_returns=len(refs), timeout=LEAVE_S)
