"""What Ray Train runs on every worker: `train_member`, with its end told to the driver or to Ray."""

from __future__ import annotations

import os
import pickle
import socket
import traceback
from typing import Any

import ray
import ray.train

from elastic_dgc import faults
from elastic_dgc.errors import ElasticDGCError, Fenced, MessageError, PeerLost
from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.log import logger
from elastic_dgc.membership.view import latest_view
from elastic_dgc.trainer.job import Job
from elastic_dgc.trainer.member import train_member
from elastic_dgc.trainer.mesh import here
from elastic_dgc.trainer.monitor import find_monitor
from elastic_dgc.trainer.reporter import Reporter
from elastic_dgc.trainer.travel import unpacked

RESTART = (PeerLost, MessageError)
"""Errors after which a new group goes on from the last checkpoint; all others of ours end the run."""


def train_worker(config: dict[str, Any]) -> None:
    """Ray Train's function per worker. Returns where the run has ended, well or not; raises where a restart helps.

    An error that everyone sees alike (bad data, a diverged model, a full disk) would come back after a restart, so it
    is told to the driver and not raised to Ray. A lost peer, or anything unforeseen, is raised: Ray starts the group
    again, from the last durable checkpoint.
    """
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    monitor = find_monitor(config["driver"])
    if ray.get(monitor.ended.remote(), timeout=60):
        here.left.set()
        return  # the run has ended while Ray was starting a group again
    reporter = Reporter(monitor, rank, here.leave).start()
    if here.mesh is None or here.listener is None:
        raise ElasticDGCError("the backend did not set this worker up: is it run by this package's trainer?")
    outcome: dict[str, Any] | None
    job: Job | None = None
    try:
        job = unpacked(config, f"worker {rank} on {socket.gethostname()}")
        os.environ[faults.VARIABLE] = job.faults
        outcome = train_member(job, rank, size, here.mesh, here.listener, reporter)
    except RESTART as error:
        if reporter.loss is None or reporter.loss.reason == str(error):
            logger(worker=rank).warning("%s", error)
        else:  # the transport has said why, and the driver says what it costs when the next group starts
            logger(worker=rank).debug("%s", error)
        reporter.tell_loss()
        raise
    except ElasticDGCError as error:
        if isinstance(error, Fenced) and job is not None and _overtaken_by_own(job):
            raise  # a group of the same command goes on: this one is only late to notice
        outcome = {
            "state": "failed",
            "error": type(error).__name__,
            "text": str(error),
            "exit_code": error.exit_code,
            "cause": _pickled(error.__cause__),
        }
    except Exception:
        logger(worker=rank).error("unforeseen error, the group starts again:\n%s", traceback.format_exc())
        raise
    finally:
        here.left.set()
    if outcome is not None and (rank == 0 or outcome["state"] == "failed"):
        reporter.finish(outcome)
    reporter.close()


def _overtaken_by_own(job: Job) -> bool:
    newest = latest_view(open_storage(job.run_url))
    return newest is not None and newest.run.endswith(job.driver)


def _pickled(error: BaseException | None) -> bytes | None:
    """The user's own exception, if there is one and it can travel."""
    if error is None:
        return None
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - an exception class may refuse to be pickled in any way; its text is carried
        return None
    return data
