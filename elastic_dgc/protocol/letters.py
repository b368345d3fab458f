"""What workers and keepers send each other beside the frames of an exchange, which are a letter too. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_dgc.exchange.ask import Key, Payload


@dataclass(frozen=True)
class Frame:
    """One payload of an exchange. Refused on delivery where its sender's view is older than what one has seen."""

    view: int
    key: Key
    payload: Payload


@dataclass(frozen=True)
class Probe:
    """Do you hear me? Answered by whatever receives, while the training thread computes."""

    number: int


@dataclass(frozen=True)
class Reached:
    number: int


@dataclass(frozen=True)
class Fetch:
    """Ask a keeper for a virtual worker's state to begin with at `closed_at`. `rolling`: a buddy's snapshot."""

    view: int
    virtual_worker: int
    closed_at: int
    rolling: bool = False


def copy_of(node: str, rolling: bool) -> str:
    """What a keeper's answer to `Fetch` is named by: one that comes late is not taken for another's."""
    return f"{'rolling copy' if rolling else 'copy'} at {node}"


@dataclass(frozen=True)
class Given:
    """Something that was asked for, or that a plan moves. `what` as in `control.Transfer`, `digest`, or `copy_of`;
    `number` is of the change or view it belongs to; payload None: refused, for `reason`."""

    number: int
    what: str
    attempt: int
    virtual_worker: int
    payload: bytes | None
    reason: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A chunk of a rolling snapshot, or forward's buffers at the start of a round, on their way to a buddy.

    `settled`: attempts that everyone has decided, proven by a vote: what is older may go (R9). `index` -1: buffers.
    """

    view: int
    virtual_worker: int
    index: int
    settled: int
    payload: bytes


@dataclass(frozen=True)
class Kept:
    """A buddy's answer at the end of a round: from which attempt on its copy would be replayed, None: not complete."""

    node: str
    virtual_worker: int
    start: int | None
