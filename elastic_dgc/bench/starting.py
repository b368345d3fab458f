"""Start the workers of `bench exchange`: processes of this machine, or actors on a Ray cluster."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from elastic_dgc.bench.exchange import ExchangeBench, Say, run_worker
from elastic_dgc.bench.network import DEADLINE_S, Seat
from elastic_dgc.errors import ElasticDGCError, UsageError, error_named
from elastic_dgc.exchange.collectives import open_store

LOCAL_HOST = "127.0.0.1"
PLACE_S, CALL_S, POLL_S = 60.0, 60.0, 0.5


def on_this_machine(bench: ExchangeBench, world: int, say: Say) -> dict[str, Any]:
    """Run in so many new processes here, over the loopback. Raises `ElasticDGCError` with what a worker failed of."""
    if world < 1:
        raise UsageError(f"world = {world}: at least 1 process is needed")
    bench.check()
    store = open_store(LOCAL_HOST, DEADLINE_S)
    with tempfile.TemporaryDirectory(prefix="elastic_dgc-bench-") as folder:
        given = (bench, world, store.port, secrets.token_bytes(16), folder)
        # Of its own accord torch says on stderr which processes it ends after one has failed; we say what failed.
        logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
        context = torch.multiprocessing.spawn(_process, given, nprocs=world, join=False)
        try:
            with _followed(Path(folder, "said"), say) as look:
                while not context.join(timeout=POLL_S):
                    look()
        except Exception as error:
            failures = sorted(Path(folder).glob("failed-*"), key=lambda file: file.stat().st_mtime)
            if failures:
                name, text = json.loads(failures[0].read_text())
                raise error_named(name)(f"{text} (on worker {failures[0].name.removeprefix('failed-')})") from None
            last = str(error).strip().splitlines()[-1]
            raise ElasticDGCError(f"a process of the benchmark ended: {last}") from error
        found: dict[str, Any] = json.loads(Path(folder, "found").read_text())
    return {**found, "workers": world, "nodes": 1}


def _process(rank: int, bench: ExchangeBench, size: int, port: int, secret: bytes, folder: str) -> None:
    def say(text: str) -> None:
        if rank == 0:
            with Path(folder, "said").open("a") as file:
                file.write(text + "\n")

    try:
        found = run_worker(bench, Seat(rank, size, LOCAL_HOST, (LOCAL_HOST, port), secret), say)
    except Exception as error:
        Path(folder, f"failed-{rank}").write_text(json.dumps([type(error).__name__, _one_line(error)]))
        raise
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found))


@contextlib.contextmanager
def _followed(file: Path, say: Say) -> Iterator[Any]:
    """Pass on the lines that are appended to a file, whenever the function is called that this yields."""
    shown = 0

    def look() -> None:
        nonlocal shown
        lines = file.read_text().splitlines() if file.exists() else []
        for line in lines[shown:]:
            say(line)
        shown = len(lines)

    yield look


class BenchWorker:
    """An actor. `run` works in one thread while `said` answers in another."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._store: Any = None

    def host(self) -> str:
        import ray

        return str(ray.util.get_node_ip_address())

    def serve(self) -> tuple[str, int]:
        """Serve the store of the group."""
        self._store = open_store(self.host(), DEADLINE_S)
        return self.host(), int(self._store.port)

    def run(self, bench: ExchangeBench, seat: Seat) -> dict[str, Any]:
        try:
            return run_worker(bench, seat, self._said.append)
        except ElasticDGCError:
            raise
        except Exception as error:
            raise ElasticDGCError(f"{_one_line(error)} (on worker {seat.rank} at {seat.host})") from error

    def said(self, since: int) -> list[str]:
        return self._said[since:]


def on_ray(bench: ExchangeBench, address: str, workers: int | None, say: Say, verbose: bool = False) -> dict[str, Any]:
    """Run in actors with one CPU each, spread over the nodes of a cluster; by default one for each node with a CPU.

    Raises `UsageError` where there is no cluster at the address, `ElasticDGCError` where it has no room.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"workers = {workers}: at least 1 worker is needed")
    bench.check()
    import ray

    from elastic_dgc.trainer import cluster
    from elastic_dgc.trainer.config import RunConfig

    connection = cluster.connect(RunConfig(), address, dashboard=False, verbose=verbose)
    try:
        size = workers or sum(node["Alive"] and node["Resources"].get("CPU", 0) >= 1 for node in ray.nodes())
        config = RunConfig(workers=str(size), virtual_workers=size, batch=size)
        lacking = cluster.missing(config, "cpu")
        if lacking is not None:
            raise ElasticDGCError(lacking)
        found = _run_actors(bench, size, say)
    finally:
        if connection.owned:
            ray.shutdown()
    return found


def _run_actors(bench: ExchangeBench, size: int, say: Say) -> dict[str, Any]:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": 1.0}] * size, strategy="SPREAD")
    actors: list[Any] = []
    try:
        if not group.wait(PLACE_S):
            raise ElasticDGCError(f"the cluster did not place {size} workers of one CPU in {PLACE_S:g} s: it is busy")
        for index in range(size):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            options = {"num_cpus": 1, "max_concurrency": 2, "scheduling_strategy": strategy}
            actors.append(ray.remote(BenchWorker).options(**options).remote())
        hosts = ray.get([actor.host.remote() for actor in actors], timeout=CALL_S)
        store = ray.get(actors[0].serve.remote(), timeout=CALL_S)
        secret = secrets.token_bytes(16)
        running = [
            actor.run.remote(bench, Seat(rank, size, host, store, secret))
            for rank, (actor, host) in enumerate(zip(actors, hosts, strict=True))
        ]
        found: dict[str, Any] = _await(actors[0], running, say)
        return {**found, "workers": size, "nodes": len(set(hosts))}
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(group)


def _await(first: Any, running: list[Any], say: Say) -> Any:
    """Worker 0's result, once all are done; what worker 0 says meanwhile. Raises what the first one failed of."""
    import ray
    from ray.exceptions import RayError

    shown, left = 0, list(running)
    while left:
        done, left = ray.wait(left, timeout=4 * POLL_S)
        try:
            for one in done:
                ray.get(one)
            lines = ray.get(first.said.remote(shown), timeout=CALL_S)
        except ElasticDGCError as error:
            cause = getattr(error, "cause", error)
            raise error_named(type(cause).__name__)(_one_line(cause)) from None
        except RayError as error:
            raise ElasticDGCError(f"a worker of the benchmark is gone: {_one_line(error)}") from None
        for line in lines:
            say(line)
        shown += len(lines)
        time.sleep(0 if done else POLL_S)
    return ray.get(running[0])


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
