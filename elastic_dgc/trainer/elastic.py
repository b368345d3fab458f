"""`ElasticTrainer`: what a user calls. Decides what the command does, starts the workers, watches them, sums up."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import secrets
from dataclasses import dataclass
from typing import Any

import ray

from elastic_dgc import faults
from elastic_dgc.errors import ElasticDGCError, Stopped, TaskFailed, UsageError, error_named
from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.keeping.storage_base import Storage
from elastic_dgc.membership import runs
from elastic_dgc.membership.alive import FINISHED, STOPPED
from elastic_dgc.membership.heartbeat import DriverBeat
from elastic_dgc.tasks.task import Task
from elastic_dgc.trainer import cluster
from elastic_dgc.trainer import job as jobs
from elastic_dgc.trainer.choosing import choose_run
from elastic_dgc.trainer.config import RunConfig
from elastic_dgc.trainer.driving import drive_run
from elastic_dgc.trainer.job import Job
from elastic_dgc.trainer.progress import Display
from elastic_dgc.trainer.shortened import shortened, users_cause
from elastic_dgc.trainer.words import workers_range

AT_ONCE = "stopped at once; the same command goes on from the last checkpoint, if there is one"


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
        Ctrl-C or SIGTERM with the state saved, `KeyboardInterrupt` on Ctrl-C before there are workers or on a second
        one, and other `ElasticDGCError`s with one line that says what to do. Where
        nobody catches them, that line is the last of a short traceback: none of what is inside here is in it.
        """
        try:
            return self._fit()
        except ElasticDGCError as error:
            raise shortened(error) from users_cause(error)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(AT_ONCE) from None

    def _fit(self) -> Result:
        config = self._absolute(self.config)
        local = self._address is None and not ray.is_initialized()
        connection = cluster.Connection(owned=False)
        beat: DriverBeat | None = None
        ended = STOPPED
        with Display(self._quiet) as display:
            try:
                if not local:
                    connection = cluster.connect(config, self._address, self._dashboard, self._verbose)
                device = cluster.choose_device(config, local)
                identity = self._identity(config, device)
                for option, path in (("audit", config.audit), ("report", config.report)):
                    if path is not None:
                        _probe(option, path)
                root = open_storage(config.storage)
                name = config.name or jobs.default_name(self.task, identity)
                run = choose_run(root, name, identity, config, self.task, display.say)
                beat = DriverBeat(root.child(run.place))
                beat.start()
                display.say(self._starting(config, device, local))
                if local:
                    connection = cluster.connect(config, None, self._dashboard, self._verbose)
                if connection.dashboard is not None:
                    display.say(f"Ray dashboard: {connection.dashboard}")
                report = self._drive(run, identity, config, device, display)
                ended = FINISHED
            finally:
                if connection.owned:
                    cluster.disconnect()
                if beat is not None:
                    beat.stop(ended)
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

    def _starting(self, config: RunConfig, device: str, local: bool) -> str:
        workers = workers_range(config.min_workers, config.max_workers)
        what = f"Ray and {workers} on this machine" if local else f"{workers} on the cluster"
        return f"starting {what}, with {device}: this takes about half a minute"

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
            outcome["audit_file"] = config.audit
        if config.report is not None:
            outcome["report_file"] = config.report
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


def _probe(option: str, path: str) -> None:
    """Find out before training that the file cannot be written after it. Folders are not made for it."""
    where, name = os.path.dirname(path), os.path.basename(path)
    folder = open_storage(where)
    if not name or (folder.is_local and os.path.isdir(path)):
        raise UsageError(f"{option} = '{path}' is a folder: name a file in it")
    if folder.is_local and not os.path.isdir(folder.local_path()):
        raise UsageError(f"{option} = '{path}': there is no folder '{where}': make it, or name a file elsewhere")
    folder.write(f"{name}.probe", b"")
    folder.delete(f"{name}.probe")


def _copy(storage: Storage, name: str, to: str) -> None:
    open_storage(os.path.dirname(to)).write(os.path.basename(to), storage.read(name))
