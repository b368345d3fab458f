"""`ElasticTrainer`: what a user calls. Decides what the command does, starts the workers, watches them, sums up."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import platform
import secrets
from dataclasses import dataclass
from typing import Any

import ray
import torch

from elastic_dgc import faults
from elastic_dgc.errors import RunIsLive, Stopped, TaskFailed, UsageError, error_named
from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.keeping.storage_base import Storage
from elastic_dgc.membership import runs
from elastic_dgc.membership.heartbeat import watch_alive
from elastic_dgc.tasks.task import Task
from elastic_dgc.trainer import cluster
from elastic_dgc.trainer import job as jobs
from elastic_dgc.trainer.config import RunConfig
from elastic_dgc.trainer.driving import drive_run
from elastic_dgc.trainer.job import Job
from elastic_dgc.trainer.progress import Display


@dataclass(frozen=True)
class Result:
    """How a run ended. `report` is what `--report` writes; `name` is the run's."""

    name: str
    report: dict[str, Any]

    @property
    def digest(self) -> str:
        """The digest of the weights, as in the model file: equal runs, equal digests."""
        return str(self.report["digest"])

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the test data, where the task's evaluation gives one."""
        return self.report["test_accuracy"]


class ElasticTrainer:
    """Trains a task on Ray workers that exchange compressed gradients.

    `ElasticTrainer(task, config).fit()`, or with fields of `RunConfig` given directly:
    `ElasticTrainer(task, workers="1:4", epochs=3)`. `address` is a Ray cluster; without one, and outside of a job, Ray
    is started here, with its `dashboard`. Raises `UsageError` for settings that cannot be.
    """

    def __init__(
        self,
        task: Task,
        config: RunConfig | None = None,
        *,
        address: str | None = None,
        dashboard: bool = True,
        verbose: bool = False,
        quiet: bool = False,
        **fields: Any,
    ) -> None:
        if not isinstance(task, Task):
            raise UsageError(f"task must be an object of a subclass of elastic_dgc.Task, not {type(task).__name__}")
        base = config or RunConfig()
        self.task, self.config = task, base.with_values(**fields) if fields else base
        self._address, self._dashboard = cluster.address_of(address), dashboard
        self._verbose, self._quiet = verbose, quiet

    def fit(self) -> Result:
        """Run to the end, through whatever happens to workers. Going on, resuming or starting over is decided by what
        the storage holds under the run's name (see README).

        Raises `TaskFailed` (with the user's exception as its cause) where the task's own code raised, `Stopped` on
        Ctrl-C or SIGTERM with the state saved, and other `ElasticDGCError`s with one line that says what to do.
        """
        config = self._absolute(self.config)
        local = self._address is None and not ray.is_initialized()
        connection = cluster.Connection(owned=False)
        with Display(self._quiet) as display:
            try:
                if not local:
                    connection = cluster.connect(config, self._address, self._dashboard, self._verbose)
                device = cluster.choose_device(config, local)
                identity = self._identity(config, device)
                for path in (config.audit, config.report):
                    if path is not None:
                        _probe(path)
                root = open_storage(config.storage)
                name = config.name or jobs.default_name(self.task, identity)
                run = self._choose_run(root, name, identity, config, display)
                if local:
                    connection = cluster.connect(config, None, self._dashboard, self._verbose)
                if connection.dashboard is not None:
                    display.say(f"Ray dashboard: {connection.dashboard}")
                report = self._drive(run, identity, config, device, display)
            finally:
                if connection.owned:
                    ray.shutdown()
        return Result(name, report)

    def _absolute(self, config: RunConfig) -> RunConfig:
        """Paths as every worker must see them."""

        def full(path: str | None) -> str | None:
            return path if path is None or "://" in path else os.path.abspath(os.path.expanduser(path))

        return config.with_values(storage=full(config.storage), audit=full(config.audit), report=full(config.report))

    def _identity(self, config: RunConfig, device: str) -> dict[str, Any]:
        source = jobs.training_source(self.task, config)
        jobs.make_order(source, config)
        identity = jobs.identity_of(self.task, config, source, device)
        jobs.seed_model(config)
        self.task.model()  # here, where its errors are one line, before anything is started
        return identity

    def _choose_run(
        self, root: Storage, name: str, identity: dict[str, Any], config: RunConfig, display: Display
    ) -> runs.RunDirectory:
        """What the same command does: resume, go on further, or start a new run under this name."""
        found = runs.RunDirectory.find(root, name)
        start = runs.decide(found.status, found.identity, identity, found.epochs, config.epochs)
        if start is runs.Start.RESUME:
            display.say(f"run '{name}' is unfinished in {root.url(found.place)}: going on with it")
            self._refuse_live(root.child(found.place), name, display)
            return found
        if start is runs.Start.EXTEND:
            display.say(f"run '{name}' finished {found.epochs} epochs: going on to {config.epochs}")
            found.extend(config.epochs)
            return found
        if start is runs.Start.AFRESH:
            display.say(
                f"run '{name}' has finished ({root.url(found.place)}): starting a new one under the same name; "
                f"more --epochs than {found.epochs} would go on with it"
            )
        versions = {"torch": torch.__version__, "ray": ray.__version__, "python": platform.python_version()}
        settings = {"run": config.model_dump(mode="json"), "task": self.task.identity()}
        return runs.RunDirectory.create(
            root, name, identity=identity, epochs=config.epochs, settings=settings, versions=versions
        )

    def _refuse_live(self, storage: Storage, name: str, display: Display) -> None:
        alive = watch_alive(storage)
        if alive is not None:
            raise RunIsLive(
                f"run '{name}' is being trained right now: process {alive.pid} on {alive.host}, attempt "
                f"{alive.attempt}; wait for it, stop it, or choose another --name"
            )

    def _drive(
        self, run: runs.RunDirectory, identity: dict[str, Any], config: RunConfig, device: str, display: Display
    ) -> dict[str, Any]:
        storage = open_storage(config.storage).child(run.place)
        driver = f"{run.name} {secrets.token_hex(4)}"
        job = Job(
            task=self.task,
            config=config,
            run=hashlib.sha256(storage.url().encode()).hexdigest()[:32],
            driver=driver,
            run_url=storage.url(),
            device=device,
            secret=secrets.token_bytes(32),
            identity=json.loads(json.dumps(identity)),
            faults=os.environ.get(faults.VARIABLE, "[]"),
        )
        outcome = drive_run(job, display)
        if outcome["state"] == "failed":
            self._raise(outcome)
        if config.audit is not None:
            _copy(storage, "audit.jsonl", config.audit)
        if config.report is not None:
            open_storage(os.path.dirname(config.report)).write(
                os.path.basename(config.report), json.dumps(outcome, indent=1).encode()
            )
        if outcome["state"] == "stopped":
            raise Stopped(
                f"stopped after attempt {outcome['attempts']}, state saved in {storage.url()}: the same command goes on"
            )
        return outcome

    def _raise(self, outcome: dict[str, Any]) -> None:
        cause = pickle.loads(outcome["cause"]) if outcome.get("cause") else None
        error = error_named(outcome["error"])(outcome["text"])
        error.exit_code = outcome["exit_code"]
        if isinstance(error, TaskFailed):
            raise error from cause
        raise error


def _probe(path: str) -> None:
    """Find out before training that the file cannot be written after it."""
    folder, name = open_storage(os.path.dirname(path)), os.path.basename(path)
    if not name or (folder.is_local and os.path.isdir(path)):
        raise UsageError(f"{path} is a folder: a file is to be written there")
    folder.write(f"{name}.probe", b"")
    folder.delete(f"{name}.probe")


def _copy(storage: Storage, name: str, to: str) -> None:
    open_storage(os.path.dirname(to)).write(os.path.basename(to), storage.read(name))
