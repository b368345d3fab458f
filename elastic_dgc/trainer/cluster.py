"""Ray itself: connecting or starting it, and what it can place."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray._private import worker

from elastic_dgc.errors import ElasticDGCError, UsageError
from elastic_dgc.trainer.config import RunConfig
from elastic_dgc.trainer.words import count

KNOCK_S = 5.0
CLIENT_PORT = 10001  # of ray:// addresses without one
OBJECT_STORE_BYTES = 200_000_000  # nothing large goes through it
DEFAULTS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",  # a lost worker is noticed within a second, not two
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # a user's relative paths keep their meaning
    "RAY_USAGE_STATS_ENABLED": "0",
}


def prepare_environment(state_tracking: bool) -> None:
    """Set what Ray reads from the environment, where the user has not. Before Ray is started or connected.

    State tracking needs the dashboard's server; without one Ray Train would fill its logs with complaints.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", str(int(state_tracking)))


def address_of(address: str | None) -> str | None:
    """The cluster to use: the one asked for, else the one a job runs on, else None: start Ray here."""
    return address or os.environ.get("RAY_ADDRESS") or None


@dataclass(frozen=True)
class Connection:
    """`owned`: Ray was started or connected here, and is to be left here again. `dashboard` is its URL, if any."""

    owned: bool
    dashboard: str | None = None


def connect(config: RunConfig, address: str | None, dashboard: bool, verbose: bool) -> Connection:
    """Connect to the cluster, or start Ray here with as many logical CPUs and GPUs as the workers ask for.

    Where Ray is connected already, nothing is done. Raises `UsageError` where there is no cluster at the address.
    """
    if ray.is_initialized():
        return Connection(owned=False)
    prepare_environment(state_tracking=address is not None or dashboard)
    common: dict[str, Any] = {"log_to_driver": verbose, "logging_level": "info" if verbose else "error"}
    if not verbose:
        _hush()
    if address is not None:
        _knock(address)
        try:
            context = ray.init(address=address, **common)
        except (ConnectionError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())[:300]
            if said.startswith("Version mismatch"):  # Ray and Python; of the rest the workers tell each other
                raise UsageError(f"Ray cluster at '{address}': {said}; install the cluster's versions here") from None
            raise UsageError(
                f"cannot use a Ray cluster at '{address}': {said}; if something listens there, see whether it is Ray's "
                f"head, and whether it asks for a token (then set RAY_AUTH_MODE=token here, too)"
            ) from None
        return _owned(context)
    cpus = max(os.cpu_count() or 1, math.ceil(config.max_workers * config.cpus_per_worker))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    context = ray.init(
        address="local",
        num_cpus=cpus,
        num_gpus=gpus,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=dashboard,
        **common,
    )
    return _owned(context)


def disconnect() -> None:
    """Leave Ray again, after `connect` said that it is ours."""
    ray.shutdown()
    worker._worker_logs_enabled = True


def _hush() -> None:
    """Keep off the progress what Ray prints of itself on the driver's stdout when a worker dies: a paragraph of its own
    for each, in colours, though `log_to_driver` is off (ray/_private/worker.py, `listen_error_messages`). The switch is
    the one of Ray's debugger; what it says stands in Ray's logs too, and `--verbose` shows it."""
    worker._worker_logs_enabled = False


def _knock(address: str) -> None:
    """Raises `UsageError` where nothing listens at HOST:PORT or ray://HOST:PORT: Ray would try for half a minute and
    print what it thinks of it. Other addresses ('auto', 'local', a name) are left to Ray."""
    place = address.removeprefix("ray://").split("?")[0].rstrip("/")
    host, colon, port = place.rpartition(":")
    if not colon and address.startswith("ray://"):
        host, port = place, str(CLIENT_PORT)
    if not host or not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()
    except (OSError, OverflowError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"no Ray cluster at '{address}': {reason.lower()}; give the --address of a running one (ray status shows "
            f"whether there is one), or none to start Ray here"
        ) from None


def _owned(context: Any) -> Connection:
    url = context.address_info.get("webui_url")
    return Connection(owned=True, dashboard=f"http://{url}" if url else None)


def choose_device(config: RunConfig, local: bool) -> str:
    """'cpu' or 'cuda'. `local`: Ray is started here, otherwise the connected cluster is asked. Raises `UsageError`
    where CUDA is asked for and not there."""
    gpus = (torch.cuda.device_count() if torch.cuda.is_available() else 0) if local else _total("GPU")
    enough = gpus >= config.min_workers * config.gpus_per_worker
    if config.device == "cuda" and gpus == 0:
        place = "this machine" if local else "the cluster"
        raise UsageError(f"device = 'cuda': {place} has no GPU that torch can use (torch {torch.__version__}); use cpu")
    if config.device == "auto":
        return "cuda" if enough and gpus else "cpu"
    return config.device


def resources_per_worker(config: RunConfig, device: str) -> dict[str, float]:
    """What Ray reserves for a worker."""
    needs = {"CPU": config.cpus_per_worker}
    if device == "cuda":
        needs["GPU"] = config.gpus_per_worker
    return needs


def missing(config: RunConfig, device: str) -> str | None:
    """In words, why the cluster cannot place the minimum of workers now; None where it could."""
    needs = resources_per_worker(config, device)
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(_fits(resources, needs) for resources in alive)
    if room >= config.min_workers:
        return None
    each = " and ".join(f"{amount:g} {name}" for name, amount in needs.items() if amount)
    has = ", ".join(f"{sum(one.get(name, 0.0) for one in alive):g} {name}" for name in needs)
    return (
        f"the cluster can place {room} of the {config.min_workers} workers that are needed at least ({each} each; "
        f"it has {has} on {count(len(alive), 'node')}): add nodes, or lower --workers"
    )


def _fits(resources: dict[str, float], needs: dict[str, float]) -> int:
    counts = [resources.get(name, 0.0) // amount for name, amount in needs.items() if amount > 0]
    return int(min(counts)) if counts else 1_000_000


def _total(name: str) -> float:
    if not ray.is_initialized():
        raise ElasticDGCError("Ray is not connected yet")
    return float(ray.cluster_resources().get(name, 0.0))
