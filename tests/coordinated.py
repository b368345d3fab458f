"""A coordinator with workers that obey it, for tests: its actions are executed one by one, and may end anywhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from elastic_dgc.membership import control as say
from elastic_dgc.membership.actions import CancelTimer, End, Finished, Persist, Say, Send, SetTimer, keeper_node
from elastic_dgc.membership.coordinator import Coordinator
from elastic_dgc.membership.limits import Limits
from elastic_dgc.membership.records import Fenced, Record, from_json, to_json
from elastic_dgc.membership.roster import View, Worker
from elastic_dgc.membership.settings import CoordinatorSettings


class Crashed(Exception):
    """The coordinator ended between two of its actions."""


@dataclass
class Sham:
    """What a worker does as far as the coordinator can tell."""

    me: Worker
    decided: int = 0
    view: int = 0
    owned: set[int] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)
    messages: set[int] = field(default_factory=set)
    cut_off_from: set[str] = field(default_factory=set)
    quiet: set[type] = field(default_factory=set)  # kinds of messages that it does not answer
    incarnation: int = 0
    number: int = 0
    stage: int = 0
    ended: str = ""

    def hear(self, message: object) -> list[object]:
        if type(message) in self.quiet or getattr(message, "incarnation", 0) < self.incarnation:
            return []
        self.incarnation = max(self.incarnation, getattr(message, "incarnation", 0))
        uid = self.me.uid
        if isinstance(message, say.Fence) and message.number > self.number:
            self.number = message.number
            there = frozenset(one.uid for one in message.survivors) - self.cut_off_from
            held = (frozenset(self.rows), frozenset(self.messages))
            return [say.Report(uid, message.number, self.decided, *held, there, frozenset(self.owned), self.stage)]
        if isinstance(message, say.Plan) and message.number >= self.number:
            self.number, self.decided = message.number, message.closed_at
            return [say.Flushed(uid, message.number, message.closed_at)]
        if isinstance(message, say.Install) and message.view.number >= self.number and self.view < message.view.number:
            view = self.number = self.view = message.view.number
            if uid not in message.view.uids:
                self.ended = "out"
                return []
            before, self.owned = self.owned, set(message.view.hosted(uid))
            orphans = sorted((self.owned - before) & message.view.sources.keys())
            if say.Stuck in self.quiet:  # they do not come to it
                self.owned -= set(orphans)
                return []
            return [say.Hosted(uid, view, k, int(message.view.sources[k][0].tier)) for k in orphans]
        if isinstance(message, say.Ping):
            return [say.Beat(uid, self.view)]
        if isinstance(message, say.Poll):
            return [say.Hello(self.me, self.view)]
        if isinstance(message, (say.Stop, say.Out)):
            self.ended = type(message).__name__.lower()
        return []


def named(attempt: int, virtual_worker: int) -> str:
    """The samples of a forward pass."""
    return f"rows {attempt} and {virtual_worker}"


class World:
    """Executes a coordinator's actions, and lets workers answer. Every action is checked against what was persisted."""

    def __init__(self, limits: Limits | None = None, **settings: object) -> None:
        values: dict[str, object] = {"virtual_workers": 4, "min_workers": 1, "max_workers": 8, **settings}
        self.settings = CoordinatorSettings(**values)
        self.limits = limits or Limits()
        self.records: list[Record] = []
        self.workers: dict[str, Sham] = {}
        self.keepers: dict[str, Callable[[int], say.Inventory | None]] = {}
        self.timers: dict[str, float] = {}
        self.sent: list[tuple[str, object]] = []
        self.said: list[tuple[str, str]] = []
        self.killed: list[str] = []
        self.finished: str | None = None
        self.mail: deque[object] = deque()
        self.left: int | None = None  # actions until the coordinator crashes
        self.coordinator = Coordinator(self.settings, self.limits, ())
        self.do(self.coordinator.start())

    # --- executing

    def do(self, actions: Iterable[object]) -> None:
        for action in actions:
            if self.left == 0:
                raise Crashed
            self.left = None if self.left is None else self.left - 1
            self._one(action)

    def _one(self, action: object) -> None:
        match action:
            case Persist():
                record = from_json(to_json(action.record))
                assert record == action.record
                if isinstance(record, Fenced):
                    assert record.number > max((n for n, _ in self.numbers()), default=0)
                self.records.append(record)
            case Send():
                self._check(action.message)
                self.sent.append((action.to, action.message))
                self._deliver(action.to, action.message)
            case SetTimer():
                assert action.after_s > 0
                self.timers[action.name] = action.after_s
            case CancelTimer():
                self.timers.pop(action.name, None)
            case Say():
                assert action.level in ("info", "warning", "error")
                self.said.append((action.level, action.text))
            case End():
                self.killed.append(action.uid)
                self.workers.pop(action.uid, None)
            case Finished():
                self.finished = action.reason
                self.timers.clear()
            case _:
                raise AssertionError(action)

    def _check(self, message: object) -> None:
        """Nothing is announced that is not persisted."""
        if isinstance(message, (say.Fence, say.Plan)):
            assert (message.number, "fenced") in self.numbers()
        if isinstance(message, say.Install):
            assert message.view in self.records

    def _deliver(self, to: str, message: object) -> None:
        node = keeper_node(to)
        if node is not None:
            held = self.keepers.get(node)
            answer = held(message.number) if held is not None and isinstance(message, say.Fence) else None
            if answer is not None:
                self.mail.append(answer)
        elif to in self.workers:
            self.mail.extend(self.workers[to].hear(message))

    def settle(self) -> None:
        """Until nobody says anything any more."""
        while self.mail:
            self.do(self.coordinator.handle(self.mail.popleft()))

    # --- what happens

    def come(self, *uids: str, capacity: int = 1 << 30) -> None:
        """Workers say hello, uid `a1` from node `a`; what that leads to is carried out."""
        for uid in uids:
            self.workers[uid] = Sham(Worker(uid, uid[0], capacity))
            self.mail.append(say.Hello(self.workers[uid].me))
        self.settle()

    def tell(self, *messages: object) -> None:
        self.mail.extend(messages)
        self.settle()

    def die(self, uid: str) -> None:
        self.workers.pop(uid, None)
        self.do(self.coordinator.died(uid))
        self.settle()

    def fire(self, name: str) -> float:
        """A timer passes. Returns how long it was set for."""
        after_s = self.timers.pop(name)
        self.do(self.coordinator.timer(name))
        self.settle()
        return after_s

    def keeper(self, node: str, *held: say.Held, shared: tuple[int, int] | None = None) -> None:
        self.keepers[node] = lambda number: say.Inventory(node, number, held, shared)
        self.do(self.coordinator.keeper_there(node))
        self.settle()

    def restart(self) -> None:
        """A new coordinator, from what was persisted. Keepers say that they are there before it starts."""
        self.left, self.timers = None, {}
        records = [from_json(to_json(one)) for one in self.records]
        self.coordinator = Coordinator(self.settings, self.limits, records, named)
        for node in self.keepers:
            self.do(self.coordinator.keeper_there(node))
        self.do(self.coordinator.start())
        self.settle()

    def beats(self) -> None:
        """Everybody who lives beats once, and who does not is found silent."""
        self.tell(*(say.Beat(uid, one.view) for uid, one in self.workers.items() if not one.ended))
        for name in [name for name in self.timers if name.startswith("beat:")]:
            uid = name.removeprefix("beat:")
            if keeper_node(uid) is None and uid not in self.workers and name in self.timers:
                self.fire(name)

    # --- what one sees

    def numbers(self) -> list[tuple[int, str]]:
        return [
            (one.number, "fenced" if isinstance(one, Fenced) else "view")
            for one in self.records
            if isinstance(one, (Fenced, View))
        ]

    @property
    def views(self) -> list[View]:
        return [one for one in self.records if isinstance(one, View)]

    @property
    def view(self) -> View:
        return self.views[-1]

    def got(self, uid: str, kind: type) -> list[object]:
        return [message for to, message in self.sent if to == uid and isinstance(message, kind)]

    def train(self, decided: int) -> None:
        """Everybody decides attempts up to this count."""
        for one in self.workers.values():
            one.decided = decided

    def announced(self) -> bool:
        """Whether a member of the present view was told that a change is wanted: then a vote tells the others."""
        wanted = [one for uid in self.view.uids for one in self.got(uid, say.Pending)]
        return any(isinstance(one, say.Pending) and one.view == self.view.number for one in wanted)

    def boundary(self) -> None:
        """All members who live come to the boundary that was announced."""
        assert self.announced()
        there = [self.workers[uid] for uid in self.view.uids if uid in self.workers]
        self.tell(*(say.Boundary(one.me.uid, self.view.number, one.decided) for one in there))


def world(*uids: str, decided: int = 10, keepers: Iterable[str] = (), **settings: object) -> World:
    """A view of these workers, at this attempt."""
    made = World(**settings)
    made.settings = made.settings.with_values(min_workers=max(len(uids), made.settings.min_workers))
    made.coordinator = Coordinator(made.settings, made.limits, ())
    made.records, made.timers, made.sent, made.said = [], {}, [], []
    for node in keepers:
        made.keepers[node] = lambda number, node=node: say.Inventory(node, number, (), None)
        made.do(made.coordinator.keeper_there(node))
    made.do(made.coordinator.start())
    made.come(*uids)
    assert made.view.uids == uids
    made.settings = made.settings.with_values(min_workers=settings.get("min_workers", 1))
    made.restart()
    made.train(decided)
    made.sent.clear()
    made.said.clear()
    return made


__all__ = ["Crashed", "Sham", "World", "replace", "world"]
