"""A worker's life in a run: enter a view, make attempts, do what is due at boundaries, and follow every change of view.

It is a generator of `Wait`s, so that the same code runs in a thread over sockets and, in tests, thousands of times in
virtual time. Everything that must be remembered when the view changes is here; what changes it is `change`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from elastic_dgc.errors import ProtocolError
from elastic_dgc.exchange.ask import Ask, Key, Kind, Payload, Steps
from elastic_dgc.exchange.mailbox import describe
from elastic_dgc.exchange.members import Members
from elastic_dgc.keeping import serialize
from elastic_dgc.keeping.canonical import canonical_json
from elastic_dgc.keeping.sent import SentSince
from elastic_dgc.membership import control as say
from elastic_dgc.membership.limits import Limits
from elastic_dgc.membership.roster import Tier, View
from elastic_dgc.protocol import adopt, change, joining
from elastic_dgc.protocol.agent import Agent
from elastic_dgc.protocol.bundle import bundle
from elastic_dgc.protocol.copies import snapshots
from elastic_dgc.protocol.keeper import Keeper
from elastic_dgc.protocol.letters import Frame
from elastic_dgc.protocol.packing import load_owned, pack_owned
from elastic_dgc.protocol.post import LASTING
from elastic_dgc.protocol.program import Durable, Program
from elastic_dgc.protocol.wait import COORDINATOR, Life, Out, Over, Wait
from elastic_dgc.step.attempt import attempt
from elastic_dgc.step.log import Entry
from elastic_dgc.step.repair import Rearranged, SumKnown, Surroundings
from elastic_dgc.step.row import Request
from elastic_dgc.step.settings import FaultHook
from elastic_dgc.step.stale import stale
from elastic_dgc.step.state import OwnedState
from elastic_dgc.step.sums import unpack_of

T = TypeVar("T")
BOUNDARY_FIELDS = ("evaluations", "views", "healed")
PATIENCE = 3  # deadlines of a phase that may pass, each of them reported, before a worker gives up


class Member(Surroundings):
    """One worker. `keeper` is its node's, reached by shared memory; `agent` hears while this computes."""

    def __init__(
        self,
        agent: Agent,
        program: Program,
        durable: Durable,
        keeper: Keeper,
        limits: Limits,
        *,
        fast: bool = False,
        fault: FaultHook = lambda point, attempt: None,
    ) -> None:
        self.agent, self.program, self.durable, self.keeper, self.limits = agent, program, durable, keeper, limits
        self.fast, self.fault = fast, fault
        self.replica = program.replica(())
        self.stage = 0  # of what is due at this boundary
        self.extra: tuple[str, ...] = ()  # what the last vote asked for beside that
        self.closing: say.Plan | None = None  # the flush has given all that finishes the open attempt
        self.newest: Entry | None = None  # the last decided attempt, for whoever is behind
        self.incoming: dict[int, bytes] = {}  # owned state that a plan gives this worker
        self.recovered: list[tuple[int, adopt.Recovered]] = []  # orphans that came here, in order
        self.followed: list[int] = []  # attempts that were taken from a log: decided by workers who may be gone
        self.flushed_total: bytes | None = None  # of a whole step that others have decided
        self.told = False  # the coordinator's silence has led to a checkpoint already

    # --- what the attempt asks

    @property
    def uid(self) -> str:
        return self.agent.me.uid

    @property
    def view(self) -> View:
        view = self.agent.view
        assert view is not None
        return view

    @property
    def decided(self) -> int:
        """Attempts decided here: also the number of the open one."""
        return self.replica.counters.attempt

    @property
    def members(self) -> Members:
        return self.view.members(self.uid)

    @property
    def keeps_log(self) -> bool:
        return True

    def row(self, virtual_worker: int) -> bytes | None:
        return self._kept(Kind.ROW, virtual_worker)

    def message(self, virtual_worker: int) -> bytes | None:
        return self._kept(Kind.MESSAGE, virtual_worker)

    def _kept(self, kind: Kind, virtual_worker: int) -> bytes | None:
        found = self.agent.post.get(Key(kind, self.decided, virtual_worker))
        return None if found is None else bytes(found)

    def prepared(self, virtual_worker: int, message: bytes) -> None:
        self.keeper.prepared(virtual_worker, self.decided, message)

    def enter(self, entry: Entry) -> None:
        self.newest = entry
        self.keeper.decided(entry)

    # --- what a change of view asks

    def packed_owned(self, virtual_worker: int) -> bytes:
        return pack_owned(self.replica.owned[virtual_worker])

    def unpacked_owned(self, virtual_worker: int, packed: bytes) -> OwnedState:
        alone = self.program.replica([virtual_worker]).owned[virtual_worker]
        load_owned(alone, packed)
        return alone

    def installed(self, view: View) -> None:
        """A view is taken over: what moved away is freed, what was given is used, and the boundary begins where the
        slowest was."""
        hosted = view.hosted(self.uid)
        self.replica.settle()
        for k in [k for k in self.replica.owned if k not in hosted]:
            del self.replica.owned[k]
        for k in hosted:
            if k not in self.replica.owned:
                offered = self.keeper.take_offered(k, self.uid, view.closed_at)
                if offered is not None:
                    self.replica.owned[k] = offered
        self.extra = ()
        self.stage = min(view.stage, len(self.due()))
        if not self.keeper.can_give:
            self.keeper.snapshot(self.decided, self.packed_shared)

    def attach(self, keeper: Keeper) -> None:
        """A new keeper on this node, in place of one that died: it gets the memory that is mapped here."""
        self.keeper = keeper
        if self.agent.view is not None:
            for k, one in self.replica.owned.items():
                keeper.hold(k, self.uid, one)

    def without_sent(self, state: OwnedState, tag: int) -> None:
        """The rule of tier 2: zero wherever this virtual worker has sent since the copy of `tag`."""
        parts = self.keeper.shared(self.decided, tag)
        sent = SentSince(self.replica.layout.numel)
        if parts is None:
            sent.add_all()
        else:
            for entry in map(Entry.unpack, parts[1:]):
                if entry.attempt >= tag and entry.total is not None:
                    sent.add_all()
                elif entry.attempt >= tag and entry.messages is not None:
                    message = unpack_of(self.replica.layout, state.virtual_worker, entry.messages[state.virtual_worker])
                    sent.add(message.positions)
        stale(state.u, state.v, sent.mask())

    def lost_mass(self, virtual_worker: int, tier: Tier) -> float:
        """An upper bound of what was lost of v where an orphan came back by this tier."""
        return 0.0 if tier.exact else math.inf

    # --- the life

    def run(self) -> Life[None]:
        """From joining to the end of the run. Raises `Over` where this worker's part ends before that."""
        yield from joining.join(self)
        while True:
            yield from self.boundary()
            if self.decided >= self.program.end or self.view.ending:
                break
            yield from self._attempt()
        self.agent.doing = ("done", self.decided, -1)
        yield from self.wait((Out(COORDINATOR, say.Done(self.uid, self.view.number)),), lambda: True, "finish", 1.0)

    def _attempt(self) -> Life[None]:
        number = self.decided
        self.stage = len(self.due())  # all that was due at the boundary before this attempt is done

        def fault(point: str, attempt_number: int) -> None:
            if point == "forward":
                self.agent.doing = ("forward", number, next(forwards, -1))
            self.fault(point, attempt_number)

        forwards: Iterator[int] = iter(sorted(self.replica.owned))
        outcome = yield from self._drive(
            attempt(
                self.replica, self, lambda k: self.program.batches(number, k), self.program.loss,
                requests=self._requests(), fault=fault,
            ),
            self.boundary_again,
        )  # fmt: skip
        self.stage = 0
        self.program.applied(outcome, self.replica)
        # The vote of this attempt returned, so everyone decided the one before it (R9).
        self.agent.post.forget(number)
        requests = outcome.decision.requests
        self.extra = ("checkpoint",) if Request.CHECKPOINT in requests else ()
        if Request.CHECKPOINT in requests:
            self.told = self.agent.coordinator_lost
        if self.closing is not None:
            yield from change.close(self)
        else:
            yield from self._keep_copies(number)
            if Request.VIEW in requests:
                yield from self._announced()

    def _requests(self) -> Request:
        asked = Request.VIEW if self.agent.pending else Request.NONE
        if self.agent.coordinator_lost and not self.told:
            asked |= Request.CHECKPOINT
        return asked

    def _announced(self) -> Life[None]:
        """A boundary that a vote announced: the coordinator changes the view now, or training goes on without."""
        self.agent.pending = False
        boundary = say.Boundary(self.uid, self.view.number, self.decided)
        self.agent.doing = ("boundary", self.decided, -1)
        yield from self.wait(
            (Out(COORDINATOR, boundary),), lambda: self.agent.changing, "boundary", self.limits.boundary_s
        )
        if self.agent.changing:
            yield from change.change(self)

    def _keep_copies(self, settled: int) -> Life[None]:
        """Shared state at the start of a round; a chunk of every hosted virtual worker's owned state to its buddy."""
        if self.decided % self.keeper.chunks == 0:
            self.keeper.snapshot(self.decided, self.packed_shared)
        outs = snapshots(self, settled)
        if outs:
            yield from self.wait(tuple(outs), lambda: True, "copy", 1.0, sent_point="copy")

    def packed_shared(self) -> bytes:
        """Shared state as it is now."""
        return serialize.pack(*self.replica.export_shared())

    def given_shared(self) -> bytes:
        """Shared state for a newcomer: with the log where that reaches back, so that it can replay as others can."""
        given = self.keeper.given(self.decided)
        return given if given is not None else bundle([self.packed_shared(), self._noted()])

    def _noted(self) -> bytes:
        return canonical_json(self._fields()).encode()

    def _fields(self) -> dict[str, Any]:
        """The counters that boundaries change, and not attempts."""
        counters = self.replica.counters
        return {name: getattr(counters, name) for name in BOUNDARY_FIELDS}

    def take_fields(self, packed: bytes) -> None:
        """The inverse, after the log was followed."""
        for name, value in json.loads(packed).items():
            setattr(self.replica.counters, name, value)

    # --- boundaries

    def due(self) -> tuple[str, ...]:
        ending = ("checkpoint",) if self.view.ending else ()
        return tuple(dict.fromkeys((*self.program.due(self.decided), *self.extra, *ending)))

    def boundary(self) -> Life[None]:
        """Everything that is due here, once on everyone, or again where the view changed before all had done it."""
        while True:
            try:
                yield from self._together()
                return
            except Rearranged:
                continue  # `stage` is what the slowest had done

    def boundary_again(self) -> Life[None]:
        """The view changed in an attempt: somebody may not have come to it yet."""
        yield from self.boundary()

    def _together(self) -> Life[None]:
        due = self.due()
        while self.stage < len(due):
            what = due[self.stage]
            self.agent.doing = (what, self.decided, -1)
            self.fault(what, self.decided)
            steps = self.program.together(what, self.replica, self.members, self.decided, self.view.number)
            yield from self._drive(steps, None)
            self.stage += 1
            self.keeper.note(self.decided, self._fields())

    # --- asks

    def _drive(self, steps: Steps[T], again: Callable[[], Life[None]] | None) -> Life[T]:
        """Run steps of an exchange in whatever view there is. `again` is done before they go on in another one."""
        try:
            ask = next(steps)
            while True:
                try:
                    got = yield from self._answer(ask)
                except (Rearranged, SumKnown) as thrown:
                    if again is not None and isinstance(thrown, Rearranged):
                        yield from again()
                    ask = steps.throw(thrown)
                else:
                    ask = steps.send(got)
        except StopIteration as stop:
            return stop.value
        finally:
            steps.close()

    def _answer(self, ask: Ask) -> Life[Mapping[Key, Payload]]:
        """Send and collect. Raises `Rearranged` where another view was installed meanwhile, `SumKnown` where a flush
        brought the sum."""
        post = self.agent.post
        if self.closing is not None:
            return self._from_flush(ask)
        uids, number = self.view.uids, self.view.number
        self.agent.doing = (ask.phase, self.decided, -1)
        outs = tuple(Out(uids[one.to], Frame(number, one.key, bytes(one.payload))) for one in ask.send)
        for one in ask.send:
            if one.key.kind in LASTING:
                post.put(one.key, bytes(one.payload))
        phase, deadline_s = ask.phase, self.limits.of_phase(ask.phase)
        in_time = yield from self.wait(
            outs, lambda: post.has(ask.want) or self.agent.changing, phase, deadline_s, ask.meanwhile, ask.sent_point
        )
        for _ in range(PATIENCE):
            if post.has(ask.want):
                return {key: self._payload(key) for key in ask.want}
            if self.agent.changing:
                yield from change.change(self)
                if self.closing is not None:
                    return self._from_flush(ask)
                raise Rearranged
            if not in_time:
                missing = {uids[rank]: key for key, rank in ask.want.items() if post.get(key) is None}
                why = f"the limit of {deadline_s:g} s passed in phase '{phase}', {{}} is missing"
                outs = tuple(
                    o for uid, key in missing.items() for o in self.agent.suspect(uid, why.format(describe(key)))
                )
                in_time = yield from self.wait(
                    outs, lambda: post.has(ask.want) or self.agent.changing, phase, deadline_s
                )
        raise Over("alone", f"the limit of {deadline_s:g} s passed {PATIENCE} times in phase '{phase}'")

    def _payload(self, key: Key) -> Payload:
        payload = self.agent.post.get(key)
        assert payload is not None
        return payload

    def _from_flush(self, ask: Ask) -> Mapping[Key, Payload]:
        """What the flush brought is all there is: nothing is sent any more in the old view."""
        post = self.agent.post
        if post.has(ask.want):
            return {key: self._payload(key) for key in ask.want}
        total = self.flushed_total
        if total is not None and ask.phase == "exchange":
            raise SumKnown(total)
        missing = next(key for key in ask.want if post.get(key) is None)
        raise ProtocolError(f"the flush to {self.closing} did not bring {describe(missing)}")

    def wait(
        self,
        outs: tuple[Out, ...],
        until: Callable[[], bool],
        phase: str,
        deadline_s: float,
        meanwhile: Callable[[], None] | None = None,
        sent_point: str | None = None,
    ) -> Life[bool]:
        """One wait. Returns whether `until` holds, else the deadline passed. Raises `Over` where this worker's part is
        over, whatever it waits for."""
        agent = self.agent
        in_time = yield Wait(outs, lambda: agent.over is not None or until(), phase, deadline_s, meanwhile, sent_point)
        if agent.over is not None:
            raise Over(*agent.over)
        return in_time
