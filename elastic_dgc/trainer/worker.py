"""What runs on every Ray Train worker: join the group, build or load state, train, tell how it ended."""

from __future__ import annotations

import os
import pickle
import traceback
from typing import Any

import ray
import ray.train
import torch

from elastic_dgc import faults
from elastic_dgc.data.loader import Loader
from elastic_dgc.errors import Disagreement, ElasticDGCError, Fenced, MessageError, PeerLost, StorageError, UsageError
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.tcp import TcpTransport
from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.log import logger
from elastic_dgc.membership.heartbeat import Heartbeat
from elastic_dgc.precision.determinism import make_deterministic
from elastic_dgc.step.plan import explain, require
from elastic_dgc.step.replica import Replica
from elastic_dgc.trainer import job as jobs
from elastic_dgc.trainer.feed import Feed
from elastic_dgc.trainer.figures import Figures
from elastic_dgc.trainer.finishing import finish
from elastic_dgc.trainer.group import Group
from elastic_dgc.trainer.job import Job
from elastic_dgc.trainer.loop import AUDIT_FOLDER, Signals, Totals, Training
from elastic_dgc.trainer.mesh import here
from elastic_dgc.trainer.monitor import find_monitor
from elastic_dgc.trainer.reporter import Reporter
from elastic_dgc.trainer.saving import Checkpoints, prove_shared

RESTART = (PeerLost, MessageError)
"""Errors after which a new group goes on from the last checkpoint; all others of ours end the run."""


def train_worker(config: dict[str, Any]) -> None:
    """Ray Train's function per worker. Returns where the run has ended, well or not; raises where a restart helps.

    An error that everyone sees alike (bad data, a diverged model, a full disk) would come back after a restart, so it
    is told to the driver and not raised to Ray. A lost peer, or anything unforeseen, is raised: Ray starts the group
    again, from the last durable checkpoint.
    """
    job: Job = config["job"]
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    os.environ[faults.VARIABLE] = job.faults
    monitor = find_monitor(job.driver)
    if ray.get(monitor.ended.remote(), timeout=60):
        return  # the run has ended while Ray was starting a group again
    reporter = Reporter(monitor, rank).start()
    try:
        outcome = _train(job, rank, size, reporter)
    except RESTART as error:
        logger(worker=rank).warning("%s", error)
        raise
    except ElasticDGCError as error:
        if isinstance(error, Fenced) and here.leave.is_set():
            raise
        outcome = {"state": "failed", "error": type(error).__name__, "text": str(error), "cause": _pickled(error)}
        outcome["exit_code"] = error.exit_code
    except Exception:
        logger(worker=rank).error("unforeseen error, the group starts again:\n%s", traceback.format_exc())
        raise
    finally:
        here.left.set()
    if outcome is not None and (rank == 0 or outcome["state"] == "failed"):
        reporter.finish(outcome)
    reporter.close()


def _pickled(error: BaseException) -> bytes | None:
    """The user's own exception, if there is one and it can travel."""
    if error.__cause__ is None:
        return None
    try:
        data = pickle.dumps(error.__cause__)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - an exception class may refuse to be pickled in any way; its text is carried
        return None
    return data


def _train(job: Job, rank: int, size: int, reporter: Reporter) -> dict[str, Any] | None:
    mesh, config = here.mesh, job.config
    if mesh is None or here.listener is None:
        raise ElasticDGCError("the backend did not set this worker up: is it run by this package's trainer?")
    if mesh.view is None:
        raise StorageError(mesh.error or "no view was claimed")
    view = mesh.view.number
    device = torch.device(job.device)
    make_deterministic(config.threads, device)
    faults.reach("start", view=view, attempt=-1, worker=rank)
    transport = TcpTransport(
        here.listener, rank, mesh.addresses, bytes.fromhex(job.run), view, job.secret,
        connect_deadline_s=60.0, silence_deadline_s=config.peer_silence_s,
    )  # fmt: skip
    group = Group(Members.of(rank, size, config.virtual_workers), transport, view, config.step_deadline_s)
    storage = open_storage(job.run_url)
    heartbeat: Heartbeat | None = None
    loader: Loader | None = None
    figures: Figures | None = None
    ended = False
    try:
        prove_shared(storage, group, f"{job.run} {view} {os.getpid()}")
        if group.leads:
            heartbeat = Heartbeat(storage, view, on_fenced=lambda reason: None).start()
        reporter.progress = {"phase": "starting", "workers": size, "view": view}
        source, test, replica, order = group.together("reading data and model", lambda: _build(job, group, device))
        checkpoints = Checkpoints(storage, group, replica, job.run, config.keep)
        loaded = checkpoints.load_newest()
        counters = replica.counters
        counters.views.append([view, counters.attempt])
        group.attempt = counters.attempt
        group.agree(replica.shared_digests(), "at start")
        group.together("setting up", lambda: _check(job, group, replica, storage))
        meta = loaded.meta if loaded is not None else {}
        totals = Totals(wire_bytes=meta.get("wire_bytes", 0), seconds=meta.get("seconds", 0.0))
        totals.samples_at_start = counters.samples
        if group.leads:
            _say_start(view, size, replica, loaded is not None, mesh.hosts)
            figures = Figures(storage, view, counters.attempt)
        last = order.steps_per_epoch * config.epochs - 1
        loader = Loader(
            source, order, config.micro_batch, group.members.hosted, counters.attempt, last, config.loader_threads
        )

        def show(progress: dict[str, Any]) -> None:
            reporter.progress = progress
            if heartbeat is not None:
                heartbeat.attempt = progress["attempt"]

        signals = Signals(
            stop=lambda: here.leave.is_set() or reporter.stop_requested,
            fenced=lambda: heartbeat.fenced if heartbeat is not None else None,
            progress=show,
        )
        training = Training(
            job, group, replica, order, Feed(loader, device), test, checkpoints, storage, totals, signals, figures
        )  # fmt: skip
        state = training.run()
        ended = state == "finished"
        if state == "stopped" and here.leave.is_set() and not reporter.stop_requested:
            return None  # Ray resizes the group: the next one goes on
        return finish(training, state, resumed_from=loaded.attempt if loaded is not None else None)
    finally:
        if loader is not None:
            loader.close()
        if figures is not None:
            figures.close()
        if heartbeat is not None:
            heartbeat.stop(finished=ended)
        transport.close()
        here.listener.close()


def _build(job: Job, group: Group, device: torch.device) -> tuple[Any, Any, Replica, Any]:
    """Data, model and state from the seed. Fails on everyone alike where it fails on one worker."""
    task, config = job.task, job.config
    source = jobs.training_source(task, config)
    test = jobs.test_source(task, config)
    identity = jobs.identity_of(task, config, source, job.device)
    names = identity.keys() | job.identity.keys()
    differ = sorted(name for name in names if identity.get(name) != job.identity.get(name))
    if differ:
        raise Disagreement(
            f"{', '.join(differ)} on this worker's node is not what the driver sees: every node must read the same data"
        )
    order = jobs.make_order(source, config)
    settings = jobs.step_settings(task, config, order, identity)
    jobs.seed_model(config)
    model = task.model()
    for name, parameter in model.named_parameters():
        if task.frozen(name):
            parameter.requires_grad_(False)
    return source, test, Replica(model, settings, group.members.hosted, device), order


def _check(job: Job, group: Group, replica: Replica, storage: Any) -> None:
    require(replica.settings, replica.layout)
    if job.config.audit and replica.counters.attempt and not storage.list(AUDIT_FOLDER):
        raise UsageError(
            f"audit: this run is at attempt {replica.counters.attempt} and was begun without; an audit must be asked "
            f"for from the start (another --name starts over)"
        )
    if group.leads and replica.counters.attempt == 0:
        for line in explain(replica.settings, replica.layout):
            logger(worker=0).info("%s", line)


def _say_start(view: int, size: int, replica: Replica, resumed: bool, hosts: tuple[str, ...]) -> None:
    settings, counters = replica.settings, replica.counters
    start = f"going on from attempt {counters.attempt}" if resumed else "starting"
    nodes = f" on {len(set(hosts))} nodes" if len(set(hosts)) > 1 else ""
    logger(worker=0).info(
        "view %d: %s with %d workers%s for %d virtual workers, %d parameters",
        view, start, size, nodes, settings.virtual_workers, replica.layout.numel,
    )  # fmt: skip
