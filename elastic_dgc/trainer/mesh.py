"""What a worker's process knows of its group before training starts. Filled in from the controller, read by the
training thread; a module-level place, because Ray runs the two in different calls of one process."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field

from elastic_dgc.errors import ElasticDGCError
from elastic_dgc.exchange.listener import Listener
from elastic_dgc.keeping import checkpoint
from elastic_dgc.keeping.storage import open_storage
from elastic_dgc.membership.alive import LEFT, last_beat
from elastic_dgc.membership.view import ViewRecord, claim_view, history, latest_view


@dataclass(frozen=True)
class Mesh:
    """The group as the backend set it up: each rank's address, and the view that was claimed for it, or why not."""

    addresses: tuple[tuple[str, int], ...]
    hosts: tuple[str, ...]
    view: ViewRecord | None
    error: str | None


@dataclass
class Place:
    """This process's part in a group."""

    listener: Listener | None = None
    mesh: Mesh | None = None
    leave: threading.Event = field(default_factory=threading.Event)  # set: leave at the next boundary, state saved
    left: threading.Event = field(default_factory=threading.Event)  # set: the training function has ended


here = Place()


def open_listener(node_ip: str | None = None) -> tuple[str, int, str]:
    """Listen for the other workers. Returns (address, port, host name). Run on every worker by the backend."""
    import ray

    if here.listener is not None:
        here.listener.close()
    here.listener = Listener(publish=node_ip or ray.util.get_node_ip_address())
    here.leave.clear()
    here.left.clear()
    return (*here.listener.address, socket.gethostname())


def set_mesh(mesh: Mesh) -> None:
    """Hand the group's mesh to this process. Run on every worker by the backend."""
    here.mesh = mesh


@dataclass(frozen=True)
class Start:
    """One start of a group. `driver` names the user's command that it belongs to."""

    run: str
    driver: str
    workers: int
    hosts: tuple[str, ...]
    unix_s: float


def claim(run_url: str, start: Start, limit: int) -> Mesh:
    """Claim a view for a group that starts now. Run on worker 0 by the backend; never raises, a reason is carried.

    After `limit` restarts in a row by the same driver that made no new checkpoint, the run is given up.
    """
    try:
        storage = open_storage(run_url)
        found, _ = checkpoint.manifests(storage)
        newest = found[0].attempt if found else None
        tag = f"{start.run} {start.driver}"
        recent = [view.resumed_from for view in history(storage) if view.run == tag]
        if len(recent) > limit and all(one == newest for one in recent[-limit:]):
            since = "the start" if newest is None else f"attempt {newest}"
            text = f"{limit} restarts in a row made no checkpoint after {since}: giving up; the log says what failed"
            return Mesh((), start.hosts, None, text)
        before, beat = latest_view(storage), last_beat(storage)
        same = before is not None and before.run == tag
        made_room = before is not None and beat is not None and beat.view == before.number and beat.state == LEFT
        record = claim_view(
            storage,
            run=tag,
            workers=start.workers,
            started_unix_s=start.unix_s,
            resumed_from=newest,
            hosts=start.hosts,
            after_failure=same and not made_room,
        )
        return Mesh((), start.hosts, record, None)
    except ElasticDGCError as error:
        return Mesh((), start.hosts, None, str(error))


def leave(wait_s: float) -> bool:
    """Ask the training thread to save and end at the next boundary, and wait for it. Run by the backend before Ray
    ends a group, when it resizes one for example. Returns whether it ended in time."""
    here.leave.set()
    return here.left.wait(wait_s)
