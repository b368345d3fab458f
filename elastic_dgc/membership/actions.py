"""What the coordinator wants done, as values. Whoever drives it executes them in order, one after the other.

The coordinator may be gone between any two of them, so their order is the protocol: what depends on a record comes
after its `Persist`.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_dgc.membership.control import (
    AllowInexact,
    BeatSeen,
    Fence,
    Install,
    Out,
    Paused,
    Pending,
    Ping,
    Plan,
    Poll,
    Stop,
)
from elastic_dgc.membership.records import Record

Announcement = Fence | Plan | Install | Pending | BeatSeen | Ping | Poll | Paused | AllowInexact | Stop | Out

_KEEPER = "keeper:"
STORAGE = "storage"  # the sender of what is read from a durable checkpoint


@dataclass(frozen=True)
class Persist:
    """Write this record so that it outlives the coordinator, and only then go on."""

    record: Record


@dataclass(frozen=True)
class Send:
    """`to` is a worker's uid, or `keeper_address(node)`. May be lost: nothing depends on its arrival alone."""

    to: str
    message: Announcement


@dataclass(frozen=True)
class End:
    """End this process, if it can be reached. It is removed in any case."""

    uid: str


@dataclass(frozen=True)
class SetTimer:
    """Call `timer(name)` after so many seconds. Replaces a timer of the same name."""

    name: str
    after_s: float


@dataclass(frozen=True)
class CancelTimer:
    """The timer of this name is not wanted any more, whether it is running or not."""

    name: str


@dataclass(frozen=True)
class Say:
    """For people. `level`: info, warning or error."""

    level: str
    text: str


@dataclass(frozen=True)
class Finished:
    """The coordinator's work is done; all timers are void."""

    reason: str


Action = Persist | Send | End | SetTimer | CancelTimer | Say | Finished


def keeper_address(node: str) -> str:
    """How the keeper of a node is named where uids stand."""
    return f"{_KEEPER}{node}"


def keeper_node(address: str) -> str | None:
    """The node, where this is a keeper's address; None where it is a worker's uid."""
    return address.removeprefix(_KEEPER) if address.startswith(_KEEPER) else None
