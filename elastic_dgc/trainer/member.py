"""One worker's life in a group: connect, build or load state, train, finish. Knows no Ray: whoever starts processes
and tells them of each other can run it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from elastic_dgc import faults
from elastic_dgc.data.loader import Loader
from elastic_dgc.data.order import Order
from elastic_dgc.data.source import Source
from elastic_dgc.errors import Disagreement, PeerLost, StorageError, UsageError
from elastic_dgc.exchange.listener import Listener
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.tcp import TcpTransport
from elastic_dgc.keeping.serialize import check_types
from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.keeping.storage_base import Storage
from elastic_dgc.log import logger
from elastic_dgc.membership.alive import FINISHED, LEFT, STOPPED
from elastic_dgc.membership.heartbeat import Heartbeat
from elastic_dgc.precision.autocast import check as check_precision
from elastic_dgc.precision.determinism import make_deterministic
from elastic_dgc.step.plan import ever_whole, explain, require
from elastic_dgc.step.replica import Replica
from elastic_dgc.trainer import job as jobs
from elastic_dgc.trainer.corrupt import CorruptSamples
from elastic_dgc.trainer.feed import Feed
from elastic_dgc.trainer.figures import Figures
from elastic_dgc.trainer.finishing import finish
from elastic_dgc.trainer.group import Group
from elastic_dgc.trainer.healing import Agreement
from elastic_dgc.trainer.heap import keep_heap
from elastic_dgc.trainer.job import Job
from elastic_dgc.trainer.loop import AUDIT_FOLDER, Signals, Totals, Training
from elastic_dgc.trainer.losses import Loss
from elastic_dgc.trainer.mesh import Mesh
from elastic_dgc.trainer.saving import Checkpoints, prove_shared
from elastic_dgc.trainer.users_code import users_code
from elastic_dgc.trainer.versions import agree_on_versions, versions
from elastic_dgc.trainer.words import count


class Watcher(Protocol):
    """What a member tells its surroundings, and what they want of it. Read and written at boundaries."""

    progress: dict[str, Any] | None
    loss: Loss | None
    """Set before `PeerLost` is raised."""

    @property
    def stop_requested(self) -> bool:
        """The user wants the run to end."""

    @property
    def leave_requested(self) -> bool:
        """This group is to end, the run goes on in another."""


@dataclass
class _Open:
    """What has to be closed whatever happens, in this order."""

    transport: TcpTransport
    listener: Listener
    loader: Loader | None = None
    figures: Figures | None = None
    heartbeat: Heartbeat | None = None
    state: str = STOPPED

    def close(self) -> None:
        if self.loader is not None:
            self.loader.close()
        if self.figures is not None:
            self.figures.close()
        if self.heartbeat is not None:
            self.heartbeat.stop(self.state)
        self.transport.close()
        self.listener.close()


def train_member(
    job: Job, rank: int, size: int, mesh: Mesh, listener: Listener, watcher: Watcher
) -> dict[str, Any] | None:
    """Train as worker `rank` of `size`. Called once per worker and group, in a process of its own.

    Returns the outcome ('finished' or 'stopped' with the report's fields on worker 0), None where the group was only
    asked to leave. Raises `PeerLost` or `MessageError` where another start may go on from the last checkpoint, and
    other `ElasticDGCError`s, alike on everyone, where it may not.
    """
    config = job.config
    if mesh.view is None:
        raise StorageError(mesh.error or "no view was claimed for this group")
    view, device = mesh.view.number, torch.device(job.device)
    make_deterministic(config.threads, device)
    keep_heap()
    faults.reach("start", view=view, attempt=-1, worker=rank)
    transport = TcpTransport(
        listener, rank, mesh.addresses, bytes.fromhex(job.run), view, job.secret,
        connect_deadline_s=config.peer_silence_s, silence_deadline_s=config.peer_silence_s,
    )  # fmt: skip
    group = Group(Members.of(rank, size, config.virtual_workers), transport, view, config.step_deadline_s)
    opened = _Open(transport, listener)
    try:
        return _train(job, group, mesh, watcher, opened)
    except PeerLost as error:
        reason = transport.lost.get(error.rank) or str(error)
        watcher.loss = Loss(error.rank, mesh.hosts[error.rank], reason, max(0, group.attempt))
        raise
    finally:
        opened.close()


def _train(job: Job, group: Group, mesh: Mesh, watcher: Watcher, opened: _Open) -> dict[str, Any] | None:
    config, storage = job.config, open_storage(job.run_url)
    agree_on_versions(group, versions())
    prove_shared(storage, group, f"{job.run} {group.view} {os.getpid()}")
    if group.leads:
        opened.heartbeat = Heartbeat(storage, group.view, on_fenced=lambda reason: None).start()
    watcher.progress = {"phase": "starting", "workers": group.members.size, "view": group.view}
    source, test, replica, order = group.together("reading data and model", lambda: _build(job, group))
    gloo = config.transport in ("auto", "collectives") and ever_whole(replica.settings, replica.layout)
    own = mesh.addresses[group.members.rank][0]
    group.learn_link(mesh.hosts, config.transport, (own, config.peer_silence_s) if gloo else None, replica.layout.numel)
    agreement = Agreement(group, replica, config.heal == "majority", mesh.hosts)
    checkpoints = Checkpoints(storage, group, replica, job.run, config.keep, agreement)
    loaded = checkpoints.load_newest()
    first = group.attempt = replica.counters.attempt
    replica.counters.views.append([group.view, first])
    agreement.at_start()
    group.together("setting up", lambda: _check(job, group, replica, storage))
    if group.leads:
        _say_start(group, replica, loaded is not None, mesh.hosts)
        end = order.steps_per_epoch * config.epochs
        watcher.progress = {**watcher.progress, "attempt": first, "resumed": first, "end": end}
        opened.figures = Figures(storage, group.view, first)
    last = order.steps_per_epoch * config.epochs - 1
    opened.loader = Loader(source, order, config.micro_batch, group.members.hosted, first, last, config.loader_threads)
    meta = loaded.meta if loaded is not None else {}
    totals = Totals(meta.get("wire_bytes", 0), meta.get("seconds", 0.0), samples_at_start=replica.counters.samples)
    heartbeat = opened.heartbeat

    def show(progress: dict[str, Any]) -> None:
        watcher.progress = {**progress, "resumed": first}
        if heartbeat is not None:
            heartbeat.attempt = progress["attempt"]

    signals = Signals(
        stop=lambda: watcher.stop_requested or watcher.leave_requested,
        fenced=lambda: heartbeat.fenced if heartbeat is not None else None,
        progress=show,
    )
    feed = Feed(opened.loader, replica.device)
    corrupt = CorruptSamples(group, {"train": source, "test": test}, meta.get("corrupt", {}))
    training = Training(
        job, group, replica, order, feed, test, checkpoints, storage, totals, signals, opened.figures, corrupt,
    )  # fmt: skip
    state = training.run()
    opened.state = FINISHED if state == "finished" else STOPPED
    stopping = group.gather(watcher.stop_requested, "stopping")
    if state == "stopped" and not any(stopping):
        opened.state = LEFT
        return None
    return finish(training, state, resumed_from=loaded.attempt if loaded is not None else None)


def _build(job: Job, group: Group) -> tuple[Source, Source | None, Replica, Order]:
    """Data, model and state from the seed. Fails on everyone alike where it fails on one worker."""
    task, config = job.task, job.config
    worker = f"worker {group.members.rank} on {socket.gethostname()}"
    with users_code(worker, "reading the data"):
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
    with users_code(worker, "making the model"):
        model = task.model()
    for name, parameter in model.named_parameters():
        if task.frozen(name):
            parameter.requires_grad_(False)
    check_types(dict(model.named_buffers()))
    beside = None if config.residual_device == "auto" else config.residual_device
    return source, test, Replica(model, settings, group.members.hosted, job.device, beside), order


def _check(job: Job, group: Group, replica: Replica, storage: Storage) -> None:
    require(replica.settings, replica.layout)
    slow = check_precision(replica.settings.precision, replica.device)
    if slow and group.leads:
        logger(worker=0).warning("precision %s: %s", replica.settings.precision, slow)
    if job.config.audit and replica.counters.attempt and not storage.list(AUDIT_FOLDER):
        raise UsageError(
            f"audit: this run is at attempt {replica.counters.attempt} and was begun without; an audit must be asked "
            f"for from the start (another --name starts over)"
        )
    if group.leads and replica.counters.attempt == 0:
        for line in explain(replica.settings, replica.layout):
            logger(worker=0).info("%s", line)


def _say_start(group: Group, replica: Replica, resumed: bool, hosts: tuple[str, ...]) -> None:
    start = f"going on from attempt {replica.counters.attempt}" if resumed else "starting"
    nodes = f" on {len(set(hosts))} nodes" if len(set(hosts)) > 1 else ""
    logger(worker=0).info(
        "view %d: %s with %s%s for %s, %d parameters on %s in %s",
        group.view, start, count(group.members.size, "worker"), nodes,
        count(group.members.virtual_workers, "virtual worker"), replica.layout.numel, replica.device.type,
        replica.settings.precision,
    )  # fmt: skip
