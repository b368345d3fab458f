"""What a worker's life is made of: send this, then wake me when that holds. Whoever drives it has the clock."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

COORDINATOR = "coordinator"
STORAGE = "storage"


def keeper_of(node: str) -> str:
    """The address of a node's keeper."""
    return f"keeper:{node}"


@dataclass(frozen=True)
class Out:
    """One letter on its way: to a worker's uid, a keeper or the coordinator."""

    to: str
    letter: object


@dataclass(frozen=True)
class Wait:
    """Send, do `meanwhile` once, then wait until `until()` holds or `deadline_s` passed; the driver sends in which.

    `until` reads what the worker's agent has learned and is asked again after each event. `sent_point` names the
    fault point that lies between sending and waiting.
    """

    send: tuple[Out, ...]
    until: Callable[[], bool]
    phase: str
    deadline_s: float
    meanwhile: Callable[[], None] | None = None
    sent_point: str | None = None


Life = Generator[Wait, bool, T]


class Overtaken(Exception):
    """The next view begins elsewhere than where this member is, which hosts nothing: it is given shared state, as a
    newcomer is."""


class Over(Exception):
    """This worker's life in the run ends, for the reason given: `out` of the view, `stopped`, or `alone`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
