"""Who is there: members of the view, those who came and wait, those who are leaving, and the keepers of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_dgc.membership.records import Records
from elastic_dgc.membership.roster import Worker
from elastic_dgc.membership.settings import CoordinatorSettings


class Crew:
    """Mutated by the coordinator as messages come in. Only `records` outlives it: the others say who they are again.

    `waiting`: newcomers in the order in which they came. `leaving`: members that asked to leave, with the reason.
    """

    def __init__(self, settings: CoordinatorSettings, records: Records) -> None:
        self._settings = settings
        self._records = records
        self.waiting: dict[str, Worker] = {}
        self.leaving: dict[str, str] = {}
        self.keepers: set[str] = set()

    @property
    def members(self) -> tuple[str, ...]:
        """Workers of the last view that are not removed, by rank."""
        return tuple(one.uid for one in self._records.survivors)

    @property
    def staying(self) -> tuple[Worker, ...]:
        return tuple(one for one in self._records.survivors if one.uid not in self.leaving)

    @property
    def joining(self) -> tuple[Worker, ...]:
        """The newcomers there is room for; the others wait as spares."""
        room = max(0, self._settings.max_workers - len(self.staying))
        return tuple(self.waiting.values())[:room]

    @property
    def known(self) -> set[str]:
        return {*self.members, *self.waiting}

    def wanted(self) -> bool:
        """Whether somebody wants to come in or to leave."""
        return bool(self.leaving or self.joining)

    def lacking(self) -> str:
        """What is missing for a view of all who stay and join, in words; '' where nothing is."""
        return lacking(self._settings, (*self.staying, *self.joining))

    def arrived(self) -> None:
        """A view was installed: its members do not wait any more, and those who left are gone."""
        members = self.members
        self.waiting = {uid: one for uid, one in self.waiting.items() if uid not in members}
        self.leaving = {uid: reason for uid, reason in self.leaving.items() if uid in members}

    def remove(self, uid: str) -> None:
        self.waiting.pop(uid, None)
        self.leaving.pop(uid, None)


def lacking(settings: CoordinatorSettings, workers: Sequence[Worker]) -> str:
    """Why these workers are too few to train, '' where they are enough."""
    if len(workers) < settings.min_workers:
        return f"{len(workers)} of at least {settings.min_workers} workers are there"
    needed = settings.virtual_workers
    room = sum(min(one.capacity, needed) for one in workers)
    if room < needed:
        return f"{len(workers)} workers have room for {room} of {needed} virtual workers"
    return ""
