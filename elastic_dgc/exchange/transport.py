"""The contract every transport keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from elastic_dgc.exchange.ask import Ask, Key, Parcel, Payload

SentHook = Callable[[Ask], None]


class Transport(ABC):
    """Point-to-point delivery between the workers of one view, used by one training thread per worker.

    What arrives is kept under its key until `forget`; a payload that was delivered stays readable (a later flush
    hands it on). Nothing is delivered twice, from an older view, from a stranger, or with other bytes than were sent.
    """

    rank: int  # this worker's rank in the view
    size: int  # workers in the view
    bytes_sent: int  # handed to the transport, headers included
    bytes_received: int

    @abstractmethod
    def send(self, parcels: Sequence[Parcel]) -> None:
        """Queue parcels for other workers; returns before they are delivered. Payloads must not be changed until
        `collect` of a later phase returned. Never blocks on a peer. Raises ValueError on a parcel to oneself."""

    @abstractmethod
    def collect(self, want: Mapping[Key, int], deadline_s: float, phase: str) -> dict[Key, Payload]:
        """Wait until every wanted payload is here. Raises `PeerLost` naming the rank that something is missing from:
        at once when that peer's connection ended, else after `deadline_s` or when it kept silent too long."""

    def exchange(self, ask: Ask, sent: SentHook | None = None) -> Mapping[Key, Payload]:
        """Send, call `sent`, do the ask's `meanwhile`, collect: one ask. What a transport may do otherwise where an
        ask's `sizes` are known."""
        self.send(ask.send)
        if sent is not None:
            sent(ask)
        if ask.meanwhile is not None:
            ask.meanwhile()
        return self.collect(ask.want, ask.deadline_s, ask.phase)

    @abstractmethod
    def forget(self, before_attempt: int) -> None:
        """Free what belongs to attempts before this one (R9: only after a vote returned)."""

    @abstractmethod
    def close(self) -> None:
        """End all connections and threads; returns within seconds. Peers see this worker as lost."""
