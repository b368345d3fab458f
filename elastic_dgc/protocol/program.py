"""What is trained, as far as the protocol must know: how a replica is made, its data, and what is due at boundaries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from elastic_dgc.exchange.ask import Steps
from elastic_dgc.exchange.members import Members
from elastic_dgc.step.attempt import Outcome
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.step.replica import LossFunction, Replica


class Program(ABC):
    """One run, as a worker sees it. Everything in it is a pure function of the run's settings and its arguments."""

    end: int  # attempts
    loss: LossFunction

    @abstractmethod
    def replica(self, hosted: Iterable[int]) -> Replica:
        """A new replica with the run's first state."""

    @abstractmethod
    def batches(self, attempt: int, virtual_worker: int) -> Sequence[MicroBatch]:
        """The micro-batches of (attempt, virtual worker)."""

    def due(self, decided: int) -> Sequence[str]:
        """What everyone does together at the boundary after so many decided attempts, in order, by name."""
        return ()

    def together(self, what: str, replica: Replica, members: Members, decided: int, view: int) -> Steps[Any]:
        """One of these things. Begun again from its start when the view changes under it, and, where somebody had not
        got through, by all: so it must come to the same whenever it is done, and replace what it did before."""
        raise NotImplementedError(what)

    def applied(self, outcome: Outcome, replica: Replica) -> None:  # noqa: B027 - a hook
        """Called when an attempt is decided: for audit, figures, progress."""


class Durable(ABC):
    """Durable checkpoints, as far as recovery reads them."""

    @abstractmethod
    def newest(self, not_above: int | None = None) -> int | None:
        """The attempts decided in the newest complete checkpoint, or the newest that has at most so many; None where
        there is none."""

    @abstractmethod
    def shared(self, decided: int) -> bytes:
        """Its shared state, as `serialize.pack` gave it. Raises `DamagedCheckpoint`."""

    @abstractmethod
    def owned(self, decided: int, virtual_worker: int) -> bytes:
        """Its state of one virtual worker. Raises `DamagedCheckpoint`."""


def shared_of(replica: Replica) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Shared state as it is stored and sent."""
    return replica.export_shared()
