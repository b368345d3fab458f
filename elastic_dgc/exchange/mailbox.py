"""Where what arrives waits until it is asked for, and where a loss becomes known to whoever waits.

One mailbox per worker. Both transports use it, so what counts as delivered, lost, late or contradictory is decided
in one place. Filled by receiver threads, emptied by the training thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from elastic_dgc.errors import ElasticDGCError, MessageError, PeerLost
from elastic_dgc.exchange.ask import Key, Payload


def describe(key: Key) -> str:
    """A key in words, for errors."""
    # Payloads of whole workers have virtual worker -1 - rank in their key (see `gather_workers`).
    whose = f"virtual worker {key.virtual_worker}" if key.virtual_worker >= 0 else f"rank {-1 - key.virtual_worker}"
    return f"{key.kind.name} of {whose}, attempt {key.attempt}" + (f", part {key.part}" if key.part else "")


class Mailbox:
    """Payloads under (sender, key), and which peers are gone. All methods may be called from any thread."""

    def __init__(self, peers: Mapping[int, str]) -> None:
        """`peers` are the ranks that something can come from, each with its name for errors."""
        self._peers = dict(peers)
        self._changed = threading.Condition()
        self._stored: dict[tuple[int, Key], Payload] = {}
        self._gone: dict[int, str] = {}
        self._left: set[int] = set()
        self._error: ElasticDGCError | None = None

    def put(self, sender: int, key: Key, payload: Payload) -> None:
        """Store a payload and wake the waiting. The same again is ignored; other bytes under the same key are an error
        that the next `take` or `collect` raises: one of two senders' views of the world is wrong, and nobody can say
        which."""
        with self._changed:
            before = self._stored.setdefault((sender, key), payload)
            if before is not payload and bytes(before) != bytes(payload):
                self._fail(MessageError(f"{self._peers[sender]} sent {describe(key)} twice, with different bytes"))
            self._changed.notify_all()

    def lose(self, rank: int, reason: str, *, orderly: bool = False) -> bool:
        """Record that nothing more can come from a peer, and wake the waiting. What it sent before stays. The first
        reason counts; returns whether this was it. `orderly`: it said goodbye."""
        with self._changed:
            if rank in self._gone:
                return False
            self._gone[rank] = reason
            if orderly:
                self._left.add(rank)
            self._changed.notify_all()
            return True

    def fail(self, error: ElasticDGCError) -> None:
        """Make every `take` and `collect`, those that wait included, raise this from now on. The first one counts."""
        with self._changed:
            self._fail(error)

    def _fail(self, error: ElasticDGCError) -> None:
        self._error = self._error or error
        self._changed.notify_all()

    @property
    def gone(self) -> dict[int, str]:
        """The peers nothing more can come from, with the reason: a copy."""
        with self._changed:
            return dict(self._gone)

    def take(self, want: Mapping[Key, int], phase: str) -> dict[Key, Payload] | None:
        """Everything wanted, or None while something can still come. Never waits; otherwise as `collect`."""
        with self._changed:
            return self._take(want, phase)

    def collect(self, want: Mapping[Key, int], deadline_s: float, phase: str) -> dict[Key, Payload]:
        """Wait until everything wanted (key -> the rank it must come from) is here.

        Raises `PeerLost` at once where it cannot come any more, `PeerLost` after `deadline_s`, `MessageError` after a
        contradiction, and ValueError for a rank that is no peer. What is returned stays stored until `forget`.
        """
        until = time.monotonic() + deadline_s
        with self._changed:
            while (got := self._take(want, phase)) is None:
                remaining_s = until - time.monotonic()
                if remaining_s <= 0:
                    raise self._too_late(want, deadline_s, phase)
                self._changed.wait(remaining_s)
            return got

    def _take(self, want: Mapping[Key, int], phase: str) -> dict[Key, Payload] | None:
        if self._error is not None:
            raise self._error
        got: dict[Key, Payload] = {}
        missing: dict[int, Key] = {}
        for key, rank in want.items():
            if rank not in self._peers:
                raise ValueError(f"{describe(key)} is wanted from rank {rank}; peers are {sorted(self._peers)}")
            payload = self._stored.get((rank, key))
            if payload is None:
                missing.setdefault(rank, key)
            else:
                got[key] = payload
        if lost := [rank for rank in missing if rank in self._gone]:
            # One that fell silent or broke off explains those that said goodbye because of it, not the other way round.
            rank = min(lost, key=lambda one: (one in self._left, one))
            raise PeerLost(
                f"{self._peers[rank]} is lost in phase '{phase}', "
                f"{describe(missing[rank])} is missing: {self._gone[rank]}",
                rank,
            )
        return None if missing else got

    def _too_late(self, want: Mapping[Key, int], deadline_s: float, phase: str) -> PeerLost:
        missing = [(rank, key) for key, rank in want.items() if (rank, key) not in self._stored]
        rank = min(missing)[0]
        keys = sorted(key for sender, key in missing if sender == rank)
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        return PeerLost(
            f"{self._peers[rank]} is given up in phase '{phase}': the deadline of {deadline_s:g} s passed while "
            f"waiting for {describe(keys[0])}{more}; its connection is alive, so "
            "it computes or loads data too long: look at its log, or raise the deadline of this phase",
            rank,
        )

    def forget(self, before_attempt: int) -> None:
        """Free everything that belongs to attempts before this one."""
        with self._changed:
            for name in [name for name in self._stored if name[1].attempt < before_attempt]:
                del self._stored[name]
