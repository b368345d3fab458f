"""What a worker wants from the transport, as a value: the protocol is written as generators that yield these.

A generator says what it sends and what it then needs; whoever drives it does the I/O. So the same protocol code runs
over sockets (`drive`), and in one thread over memory (`exchange.memory.run_together`), where tests schedule it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from elastic_dgc.errors import PeerLost

if TYPE_CHECKING:
    from elastic_dgc.exchange.transport import SentHook, Transport

T = TypeVar("T")
Payload = bytes | bytearray | memoryview


class Kind(IntEnum):
    """What a payload is. The numbers are on the wire: never reuse one."""

    PING = 0
    ROW = 1
    MESSAGE = 2
    SLICE = 3
    SUM = 4
    BUFFERS = 5
    METRICS = 6
    DIGEST = 7
    CHECKPOINT = 8
    CONTROL = 9
    BYE = 10
    PROBE = 11


@dataclass(frozen=True, order=True)
class Key:
    """Names one payload within a view. `part` tells several payloads of one virtual worker, or workers, apart."""

    kind: Kind
    attempt: int
    virtual_worker: int
    part: int = 0


@dataclass(frozen=True)
class Parcel:
    """One payload on its way to one worker (its rank in the view)."""

    to: int
    key: Key
    payload: Payload


@dataclass(frozen=True)
class Ask:
    """Send these, then give me those. `want` maps each wanted key to the rank it must come from.

    `phase` names the communication in errors and picks its deadline; `sent_point` is the fault point that lies
    between sending and receiving. `sizes`: the bytes of every wanted payload, where everyone has decided that this
    goes by a library's collectives, which must know them beforehand. `meanwhile` is work that is done once, between
    sending and waiting.
    """

    send: tuple[Parcel, ...]
    want: Mapping[Key, int]
    phase: str
    deadline_s: float = 600.0
    sent_point: str | None = field(default=None)
    sizes: Mapping[Key, int] | None = None
    meanwhile: Callable[[], None] | None = None


Steps = Generator[Ask, Mapping[Key, Payload], T]


def drive(steps: Steps[T], transport: Transport, sent: SentHook | None = None) -> T:
    """Run a generator of asks over a transport, in the calling thread, to its return value.

    Raises what the generator raises. Where a wanted payload cannot come any more, `PeerLost` is thrown in at its
    `yield`, and comes out here unless the generator goes on. `sent(ask)` is called after an ask's payloads are handed
    over and before waiting.
    """
    try:
        ask = next(steps)
        while True:
            try:
                got = transport.exchange(ask, sent)
            except PeerLost as lost:
                ask = steps.throw(lost)  # the protocol may know how to go on
            else:
                ask = steps.send(got)
    except StopIteration as stop:
        return stop.value
    finally:
        steps.close()


def parcels(to: Iterable[int], key: Key, payload: Payload) -> tuple[Parcel, ...]:
    """The same payload for several workers."""
    return tuple(Parcel(rank, key, payload) for rank in to)
