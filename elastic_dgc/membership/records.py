"""What the coordinator writes down, and the state that a list of such records amounts to.

The coordinator itself reads its state from here and nowhere else, so one that comes back knows what the one before
had persisted, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from elastic_dgc.errors import ProtocolError
from elastic_dgc.membership.roster import Source, Tier, View, Worker


@dataclass(frozen=True)
class Started:
    """A coordinator took over."""

    incarnation: int


@dataclass(frozen=True)
class Fenced:
    """A change of view began: whoever sends for a view below `number` is refused from here on. `removed`: those it
    removes for ever; `joining`, `leaving`: who asked for it (who it is in the end stands in the view)."""

    incarnation: int
    number: int
    removed: tuple[str, ...] = ()
    joining: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()


@dataclass(frozen=True)
class Death:
    """A worker was lost in the forward pass of this attempt and virtual worker: one that kills again and again stops
    the run, whoever is the coordinator by then."""

    uid: str
    attempt: int
    virtual_worker: int


Record = Started | Fenced | Death | View


@dataclass(frozen=True)
class Home:
    """Where exact copies of a virtual worker's state are: the node of the last host that had it, and its buddy's."""

    node: str
    buddy: str | None

    def __str__(self) -> str:
        return f"node {self.node}" + (f" or node {self.buddy}" if self.buddy is not None else "")


class Records:
    """The state that these records amount to, in the order in which they were persisted. Mutated by `add` alone.

    `view`: the last one persisted. `open`: the change that was begun after it and not ended, None without.
    `gone`: uids that are in no view any more and will be in none. `fenced_out`: those of them removed since `view`.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.incarnation = 0
        self.number = 0
        self.view: View | None = None
        self.open: Fenced | None = None
        self.gone: set[str] = set()
        self.fenced_out: tuple[str, ...] = ()
        self._deaths: dict[tuple[int, int], set[str]] = {}
        self._homes: dict[int, Home] = {}
        self._closed: list[tuple[int, int]] = []
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        if isinstance(record, Started):
            self.incarnation = max(self.incarnation, record.incarnation)
        elif isinstance(record, Fenced):
            self.number = max(self.number, record.number)
            self.open = record
            self.gone.update(record.removed)
            self.fenced_out += tuple(uid for uid in record.removed if uid not in self.fenced_out)
        elif isinstance(record, Death):
            self._deaths.setdefault((record.attempt, record.virtual_worker), set()).add(record.uid)
        else:
            self._installed(record)

    def _installed(self, view: View) -> None:
        if self.view is not None:
            self.gone.update(set(self.view.uids) - set(view.uids))
        self.number = max(self.number, view.number)
        self._closed.append((view.number, view.closed_at))
        self.view, self.open, self.fenced_out = view, None, ()
        for k in range(len(view.hosts)):
            places = view.sources.get(k, ())
            if not places or places[0].tier is Tier.INITIAL:
                self.settled(k)

    def settled(self, virtual_worker: int) -> None:
        """The host in the present view has this virtual worker's state: its copies are made there from now on."""
        assert self.view is not None
        node = self.view.workers[self.view.hosts[virtual_worker]].node
        self._homes[virtual_worker] = Home(node, self.view.buddy(virtual_worker))

    def home(self, virtual_worker: int) -> Home | None:
        """Where exact copies would be; None before the first view in which somebody had the state."""
        return self._homes.get(virtual_worker)

    def deaths(self, attempt: int, virtual_worker: int) -> int:
        """How many workers died in this forward pass."""
        return len(self._deaths.get((attempt, virtual_worker), ()))

    def fits(self, view: int, attempt: int) -> bool:
        """Whether something written in a view at an attempt belongs to this run's one history: no later view began
        below it."""
        return all(closed_at >= attempt for number, closed_at in self._closed if number > view)

    @property
    def survivors(self) -> tuple[Worker, ...]:
        """The workers of the last view that are not removed, by rank."""
        return tuple(one for one in self.view.workers if one.uid not in self.gone) if self.view is not None else ()


def to_json(record: Record) -> dict[str, Any]:
    """The record as JSON-able values; `from_json` gives it back."""
    values = asdict(record)
    if isinstance(record, View):
        values["sources"] = {str(k): [asdict(one) for one in places] for k, places in record.sources.items()}
    return {"record": type(record).__name__, **values}


def from_json(values: Mapping[str, Any]) -> Record:
    """What `to_json` was given. Raises `ProtocolError` where these values are no record."""
    rest = dict(values)
    name = rest.pop("record", None)
    try:
        if name == "Started":
            return Started(**rest)
        if name == "Death":
            return Death(**rest)
        if name == "Fenced":
            lists: dict[str, Any] = {key: tuple(rest.pop(key)) for key in ("removed", "joining", "leaving")}
            return Fenced(**lists, **rest)
        if name == "View":
            workers = tuple(Worker(**one) for one in rest.pop("workers"))
            hosts = tuple(rest.pop("hosts"))
            sources = {int(k): tuple(map(_source, places)) for k, places in rest.pop("sources").items()}
            return View(workers=workers, hosts=hosts, sources=sources, **rest)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"a record of the coordinator makes no sense ({error!r}): {str(values)[:200]}") from error
    raise ProtocolError(f"a record of the coordinator is of an unknown kind: {str(values)[:200]}")


def _source(values: Mapping[str, Any]) -> Source:
    return Source(**{**values, "tier": Tier(values["tier"])})
