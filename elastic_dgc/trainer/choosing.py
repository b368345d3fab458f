"""What the same command does: go on with a run, extend it, or start a new one; and when it must not do anything."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
import torch

from elastic_dgc.errors import RunIsLive
from elastic_dgc.keeping.storage_base import Storage
from elastic_dgc.membership import runs
from elastic_dgc.membership.alive import DRIVER_FILE, RUNNING, last_beat, watch_alive
from elastic_dgc.tasks.code import code_fingerprint
from elastic_dgc.tasks.task import Task
from elastic_dgc.trainer.config import RunConfig

Say = Callable[[str, int], None]
"""A line for the user, and its level of `logging`."""

STRETCHED = ("cosine", "linear")  # schedules whose course is made for the number of epochs


def choose_run(
    root: Storage, name: str, identity: Mapping[str, Any], config: RunConfig, task: Task, say: Say
) -> runs.RunDirectory:
    """The run that this command trains, claimed where it is new. Called by the driver, before Ray is started.

    Raises `UsageError` where the run there has other settings, `RunIsLive` where it is being trained right now,
    whatever its state on record is; `StorageError`.
    """
    found = runs.RunDirectory.find(root, name)
    if found.number:
        runs.refuse_other(found.identity, identity)
        refuse_live(root.child(found.place), name)
    start = runs.decide(found.status, found.identity, identity, found.epochs, config.epochs)
    stretched = stretching(found.epochs, config)
    if start is runs.Start.RESUME:
        further = f" to {config.epochs} epochs" if config.epochs > found.epochs else ""
        where = root.url(found.place)
        say(f"run '{name}' is unfinished in {where}: going on with it{further}{stretched}", logging.INFO)
        _tell_of_changed_code(found, task, say)
        return found
    if start is runs.Start.EXTEND:
        say(f"run '{name}' finished {found.epochs} epochs: going on to {config.epochs}{stretched}", logging.INFO)
        _tell_of_changed_code(found, task, say)
        found.extend(config.epochs)
        return found
    if start is runs.Start.AFRESH:
        say(
            f"run '{name}' has finished ({root.url(found.place)}): starting a new one under the same name; "
            f"more --epochs than {found.epochs} would go on with it",
            logging.INFO,
        )
    versions = {"torch": torch.__version__, "ray": ray.__version__, "python": platform.python_version()}
    settings = {
        "run": config.model_dump(mode="json"),
        "task": task.identity(),
        "code": code_fingerprint(task),
        "begun": time.strftime("%Y-%m-%d %H:%M"),
    }
    return runs.RunDirectory.create(
        root, name, identity=identity, epochs=config.epochs, settings=settings, versions=versions
    )


def stretching(epochs_before: int, config: RunConfig) -> str:
    """What more epochs mean for a learning rate whose course was made for fewer; nothing where they mean nothing."""
    kind, epochs = config.schedule.kind, config.epochs
    if kind not in STRETCHED or epochs <= epochs_before:
        return ""
    return (
        f"; the learning rate's schedule ({kind}) is now stretched over {epochs} epochs, so this is not what {epochs} "
        f"epochs from the start give (another --name starts over)"
    )


def refuse_live(storage: Storage, name: str) -> None:
    """Raises `RunIsLive`, naming the processes, where this run is being trained or just started by somebody else."""
    alive = watch_alive(storage)
    if alive is None:
        return
    driver, worker = last_beat(storage, DRIVER_FILE), last_beat(storage)
    told = []
    if driver is not None and driver.state == RUNNING:
        told.append(f"by process {driver.pid} on {driver.host}")
    if worker is not None and worker.state == RUNNING:
        told.append(f"first worker: process {worker.pid} on {worker.host}, at attempt {worker.attempt}")
    who = "; ".join(told) or f"by process {alive.pid} on {alive.host}"
    raise RunIsLive(f"run '{name}' is being trained right now ({who}): wait for it, stop it, or choose another --name")


def _tell_of_changed_code(found: runs.RunDirectory, task: Task, say: Say) -> None:
    before, now = found.settings.get("code"), code_fingerprint(task)
    if before is not None and now is not None and before != now:
        say(
            f"the code of the task has changed since the run was begun ({found.settings.get('begun')}): going on with "
            f"the state that is there; another --name starts over",
            logging.WARNING,
        )
