"""Where frames wait until they are asked for. Rows and messages belong to an attempt and outlive a view; everything
else belongs to the view it was sent in."""

from __future__ import annotations

from collections.abc import Iterable

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Key, Kind, Payload
from elastic_dgc.exchange.mailbox import describe
from elastic_dgc.membership.roster import View
from elastic_dgc.protocol.letters import Frame

LASTING = frozenset({Kind.ROW, Kind.MESSAGE})


class Post:
    """One worker's. Bytes under a key never change: others under the same key are a `MessageError` on `put`."""

    def __init__(self) -> None:
        self._stored: dict[Key, Payload] = {}
        self._early: list[tuple[str, Frame]] = []
        self._view: View | None = None
        self._number = 0  # what is of an older view is refused
        self.refused: list[tuple[str, Frame]] = []

    def fence(self, number: int) -> None:
        """From here on frames of views below `number` are refused. What was stored stays."""
        self._number = max(self._number, number)

    def install(self, view: View) -> None:
        """What belonged to the view before is dropped, what came early for this one is taken in."""
        self.fence(view.number)
        self._view = view
        self._stored = {key: payload for key, payload in self._stored.items() if key.kind in LASTING}
        early, self._early = self._early, []
        for sender, frame in early:
            self.deliver(sender, frame)

    def deliver(self, sender: str, frame: Frame) -> None:
        """A frame has arrived."""
        if frame.view < self._number or (self._view is not None and frame.view < self._view.number):
            self.refused.append((sender, frame))
        elif self._view is None or frame.view > self._view.number:
            self._early.append((sender, frame))
        elif sender not in self._view.uids:
            self.refused.append((sender, frame))
        else:
            self.put(frame.key, frame.payload)

    def put(self, key: Key, payload: Payload) -> None:
        """Store a payload. The same again is ignored."""
        before = self._stored.setdefault(key, payload)
        if before is not payload and bytes(before) != bytes(payload):
            raise MessageError(f"{describe(key)} arrived twice, with different bytes: the workers are not alike")

    def get(self, key: Key) -> Payload | None:
        return self._stored.get(key)

    def has(self, keys: Iterable[Key]) -> bool:
        return all(key in self._stored for key in keys)

    def held(self, kind: Kind, attempt: int) -> frozenset[int]:
        """The virtual workers whose payload of this kind and attempt is here."""
        return frozenset(key.virtual_worker for key in self._stored if (key.kind, key.attempt) == (kind, attempt))

    def forget(self, before_attempt: int) -> None:
        """Free what belongs to attempts before this one (R9: only after a vote of it returned)."""
        self._stored = {key: payload for key, payload in self._stored.items() if key.attempt >= before_attempt}
