"""How a job gets to its workers: as bytes that a worker opens itself, so that a task that cannot be made there is one
line with its place, and not a failure somewhere inside of Ray."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

from ray import cloudpickle

from elastic_dgc.errors import TaskFailed, UsageError
from elastic_dgc.step.compute import said_by
from elastic_dgc.trainer.job import Job
from elastic_dgc.trainer.users_code import IMPORT_MEND, told


def packed(job: Job) -> dict[str, Any]:
    """What Ray Train carries to the workers. Called by the driver. Raises `UsageError` where the task cannot travel."""
    try:
        data = cloudpickle.dumps(job)
    except Exception as error:  # whatever a user's `__getstate__` and `__reduce__` raise
        raise UsageError(
            f"the task {type(job.task).__name__} cannot be sent to the workers: {said_by(error)}; open files, "
            f"connections and the like in its methods, not in __init__"
        ) from error
    return {"driver": job.driver, "job": data, "task": _home(job)}


def unpacked(config: dict[str, Any], worker: str) -> Job:
    """The job, on a worker, which is called `worker` ('worker 1 on nodeb'). Raises `TaskFailed` where the task's
    modules cannot be imported here, with module, file and mend."""
    try:
        job = pickle.loads(config["job"])
    except Exception as error:  # importing a user's module runs its code
        mend = f"; {IMPORT_MEND}" if isinstance(error, (ImportError, AttributeError)) else ""
        raise TaskFailed(f"{worker} cannot import the task {config['task']}: {told(error)}{mend}") from error
    assert isinstance(job, Job)
    return job


def _home(job: Job) -> str:
    """'mytask.T, which the driver has from /home/me/mytask.py'."""
    kind = type(job.task)
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        return f"{name}, which the driver has from {inspect.getfile(kind)}"
    except (OSError, TypeError):  # made in a session
        return name
