"""What an attempt knows of the world around it, so that it can be finished in another view than it was begun in.

Nothing in an attempt depends on the number of workers, so rows and messages stay valid when a worker is lost: only
what is missing is computed by whoever hosts that virtual worker now. What others hold of a lost worker is
authoritative: where two differ (hardware that is not deterministic), all must apply the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from elastic_dgc.compression.message import Message
from elastic_dgc.exchange.ask import Steps
from elastic_dgc.exchange.members import Members
from elastic_dgc.step.log import Entry

T = TypeVar("T")


class Rearranged(Exception):
    """Thrown in at a `yield`: another view is installed. Hosted virtual workers may have been added to the replica;
    what was asked for must be asked again, of the new view's hosts."""


class SumKnown(Exception):
    """Thrown in at a `yield` of an exchange: others have decided this attempt already, and this was the sum."""

    def __init__(self, total: bytes) -> None:
        super().__init__(f"the sum of {len(total) // 4} values is known")
        self.total = total


class Surroundings:
    """A view that never changes, and no keeper: what `attempt` assumes where nothing else is said."""

    def __init__(self, members: Members) -> None:
        self._members = members

    @property
    def members(self) -> Members:
        """The view as it is now."""
        return self._members

    @property
    def keeps_log(self) -> bool:
        """Whether messages and sums are kept beyond the attempt."""
        return False

    def row(self, virtual_worker: int) -> bytes | None:
        """The packed row of the open attempt that others hold of a virtual worker hosted here, if any."""
        return None

    def message(self, virtual_worker: int) -> bytes | None:
        """The same of its packed message."""
        return None

    def prepared(self, virtual_worker: int, message: bytes) -> None:
        """Called before anything of a message is sent."""

    def sent(self, messages: Sequence[Message]) -> None:
        """Called with what all K messages of a sparse step say, before they are applied."""

    def enter(self, entry: Entry) -> None:
        """Into the log. Called when an attempt is decided, before anything of it is written where it cannot be taken
        back. `keeps_log` says whether it is called at all."""


def insist(make: Callable[[], Steps[T]], rearranged: Callable[[], None]) -> Steps[T]:
    """Run a generator to its end, and again from its start whenever the view changed under it."""
    while True:
        try:
            return (yield from make())
        except Rearranged:
            rearranged()
