"""The exchange without sockets: all workers of a view in one thread, with faults at chosen points. Made for tests.

The same generators that `ask.drive` runs over sockets are run here side by side, round robin, so a test of the
protocol takes milliseconds, is the same every time, and can lose a worker between any two bytes it sends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from elastic_dgc.errors import MessageError, PeerLost
from elastic_dgc.exchange.ask import Ask, Key, Kind, Payload, Steps
from elastic_dgc.exchange.mailbox import Mailbox, describe

T = TypeVar("T")
SentByHook = Callable[[int, Ask], None]


class Killed(Exception):
    """The result of a worker that the network lost on purpose."""


class Deadlock(AssertionError):
    """Nobody can go on, and nobody is lost: the protocol is wrong. Says who waits for what."""


@dataclass(frozen=True)
class Loss:
    """Lose a worker, once, in the ask of this phase and attempt (None: whichever comes first).

    `reached` is how many peers still get what it sends there, in the order it names them: 0 loses it before sending,
    None after sending everything.
    """

    worker: int
    phase: str
    attempt: int | None = None
    reached: int | None = 0


@dataclass(frozen=True)
class Sent:
    """One parcel that was handed over."""

    sender: int
    to: int
    key: Key
    bytes: int


@dataclass
class Network:
    """Records every parcel that was handed over, and loses workers as told. May serve several runs in a row."""

    losses: Sequence[Loss] = ()
    sent: list[Sent] = field(default_factory=list)
    fired: list[Loss] = field(default_factory=list)

    def bytes_sent(self, *, sender: int | None = None, kind: Kind | None = None) -> int:
        """Payload bytes handed over so far, all of them or one worker's, of all kinds or of one."""
        return sum(s.bytes for s in self.sent if sender in (None, s.sender) and kind in (None, s.key.kind))

    def loss(self, worker: int, ask: Ask) -> Loss | None:
        """The loss that strikes this worker at this ask, if any; each strikes once."""
        attempts = {key.attempt for key in ask.want} | {parcel.key.attempt for parcel in ask.send}
        for loss in self.losses:
            here = loss.worker == worker and loss.phase == ask.phase
            if here and (loss.attempt is None or loss.attempt in attempts) and loss not in self.fired:
                self.fired.append(loss)
                return loss
        return None


@dataclass(frozen=True)
class Result(Generic[T]):
    """What became of one worker: its return value, or the exception that ended it (`Killed` if the network did)."""

    value: T | None = None
    error: Exception | None = None

    def get(self) -> T:
        """The return value. Raises the exception that ended the worker."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


def run_together(
    workers: Sequence[Steps[T]], sent: SentByHook | None = None, network: Network | None = None, seed: int | None = None
) -> list[T]:
    """As `run_each`, for runs in which everyone is to arrive: the return values by rank.

    Raises the error of a worker that failed by itself rather than that of one that lost its peer because of it.
    """
    results = run_each(workers, sent, network, seed)
    errors = [result.error for result in results if result.error is not None]
    if errors:
        raise min(errors, key=lambda error: (isinstance(error, PeerLost), isinstance(error, Killed)))
    return [result.get() for result in results]


def run_each(
    workers: Sequence[Steps[T]], sent: SentByHook | None = None, network: Network | None = None, seed: int | None = None
) -> list[Result[T]]:
    """Run one generator per worker (worker = rank = position) to its end, in the calling thread; results by rank.

    `sent(rank, ask)` is called as by `drive`, after an ask's parcels were handed over; what it raises ends that worker.
    `seed` draws the order in which the workers get their turns (round robin without). A worker that waits for one
    that failed or was lost gets `PeerLost` thrown in at its `yield`, and may go on. A payload that its sender changes
    before its next ask (or its return) ends the sender with `MessageError`. Raises `Deadlock` when nobody can go on.
    """
    net = network or Network()
    group = [_Worker(rank, steps, len(workers), net, sent) for rank, steps in enumerate(workers)]
    order = random.Random(seed)
    try:
        while waiting := [worker for worker in group if worker.result is None]:
            if seed is not None:
                order.shuffle(waiting)
            if not any([worker.turn(group) for worker in waiting]):
                raise Deadlock("nobody can go on: " + "; ".join(worker.waits_for(group) for worker in waiting))
    finally:
        for worker in group:
            worker.steps.close()
    return [worker.result or Result() for worker in group]


class _Worker(Generic[T]):
    """One generator, its mailbox, and the parcels it may not change yet."""

    def __init__(self, rank: int, steps: Steps[T], size: int, network: Network, sent: SentByHook | None) -> None:
        self.rank, self.steps, self.network, self.sent = rank, steps, network, sent
        self.mailbox = Mailbox({other: f"rank {other}" for other in range(size) if other != rank})
        self.result: Result[T] | None = None
        self.ask: Ask | None = None
        self._held: list[tuple[Key, Payload, bytes]] = []

    def turn(self, group: Sequence[_Worker[T]]) -> bool:
        """Go on to the next ask if possible. Returns whether anything happened."""
        try:
            if self.ask is None:
                return self._hand_over(next(self.steps), group)
            try:
                got = self.mailbox.take(self.ask.want, self.ask.phase)
            except PeerLost as lost:
                return self._hand_over(self.steps.throw(lost), group)
            return False if got is None else self._hand_over(self.steps.send(got), group)
        except StopIteration as stop:
            changed = self._changed()
            self._end(Result(error=changed) if changed else Result(value=stop.value), group)
        except Exception as error:  # noqa: BLE001 - whatever ends a worker is its result, `Result.get` raises it
            self._end(Result(error=error), group)
        return True

    def _hand_over(self, ask: Ask, group: Sequence[_Worker[T]]) -> bool:
        if changed := self._changed():
            raise changed
        peers = list(dict.fromkeys(parcel.to for parcel in ask.send))
        if strangers := [to for to in peers if to == self.rank or not 0 <= to < len(group)]:
            raise ValueError(f"rank {self.rank} sends to rank {strangers[0]} in a view of {len(group)} workers")
        self.ask, self._held = ask, []
        loss = self.network.loss(self.rank, ask)
        reached = peers if loss is None else peers[: loss.reached]
        for parcel in ask.send:
            if parcel.to in reached:
                copy = bytes(parcel.payload)
                self._held.append((parcel.key, parcel.payload, copy))
                self.network.sent.append(Sent(self.rank, parcel.to, parcel.key, len(copy)))
                group[parcel.to].mailbox.put(self.rank, parcel.key, memoryview(copy))
        if loss is not None:
            raise Killed(f"rank {self.rank} was lost on purpose: {loss}")
        if self.sent is not None:
            self.sent(self.rank, ask)
        if ask.meanwhile is not None:
            ask.meanwhile()
        return True

    def _changed(self) -> MessageError | None:
        for key, payload, copy in self._held:
            if bytes(payload) != copy:
                return MessageError(
                    f"rank {self.rank} changed {describe(key)} after handing it over: a socket may not have sent it yet"
                )
        return None

    def _end(self, result: Result[T], group: Sequence[_Worker[T]]) -> None:
        self.result, self.ask = result, None
        self.steps.close()
        if (error := result.error) is not None:
            for other in group:
                if other is not self:
                    other.mailbox.lose(self.rank, f"it ended with {type(error).__name__}: {error}")

    def waits_for(self, group: Sequence[_Worker[T]]) -> str:
        assert self.ask is not None  # a worker without an ask could still begin
        missing = [
            f"{describe(key)} from rank {rank}{'' if group[rank].result is None else ' (which has returned)'}"
            for key, rank in self.ask.want.items()
            if self.mailbox.take({key: rank}, self.ask.phase) is None
        ]
        return f"rank {self.rank} in phase '{self.ask.phase}' waits for {', '.join(missing)}"
