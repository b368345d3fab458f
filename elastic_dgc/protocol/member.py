"""A worker: everything it must remember when the view changes. What it does is in `life`, `change` and `adopt`.

Its life is a generator of `Wait`s, so that the same code runs in a thread over sockets and, in tests, thousands of
times in virtual time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from elastic_dgc.compression.message import Message
from elastic_dgc.exchange.ask import Key, Kind
from elastic_dgc.exchange.members import Members
from elastic_dgc.keeping import serialize
from elastic_dgc.keeping.canonical import canonical_json
from elastic_dgc.keeping.sent import SentSince
from elastic_dgc.membership import control as say
from elastic_dgc.membership.limits import Limits
from elastic_dgc.membership.roster import Tier, View
from elastic_dgc.protocol import adopt, life
from elastic_dgc.protocol.agent import Agent
from elastic_dgc.protocol.bundle import bundle
from elastic_dgc.protocol.keeper import Keeper
from elastic_dgc.protocol.ledger import Ledger
from elastic_dgc.protocol.packing import load_owned, pack_owned
from elastic_dgc.protocol.program import Durable, Program
from elastic_dgc.protocol.wait import Life, Out, Over, Wait
from elastic_dgc.step.log import Entry
from elastic_dgc.step.mass import lost_mass_bound
from elastic_dgc.step.repair import Surroundings
from elastic_dgc.step.settings import FaultHook
from elastic_dgc.step.stale import stale
from elastic_dgc.step.state import OwnedState
from elastic_dgc.step.sums import unpack_of

BOUNDARY_FIELDS = ("evaluations", "views", "healed")


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
        self.decoded: Sequence[Message] | None = None  # what was sent in the open attempt
        self.incoming: dict[int, bytes] = {}  # owned state that a plan gives this worker
        self.recovered: list[tuple[int, adopt.Recovered]] = []  # orphans that came here, in order
        self.followed: list[int] = []  # attempts that were taken from a log: decided by workers who may be gone
        self.flushed_total: bytes | None = None  # of a whole step that others have decided
        self.ledger = self.new_ledger(known=True)
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

    def sent(self, messages: Sequence[Message]) -> None:
        self.decoded = messages

    def enter(self, entry: Entry) -> None:
        self.newest = entry
        self.keeper.decided(entry, self.view.number)

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
        self.keeper.ledger = self.ledger
        known = self.keeper.shared_range
        if known is None or known[1] < self.decided:  # nothing, or of before a gap: after a start from storage
            self.keeper.learn(self.decided, self.packed_shared(), ())

    def attach(self, keeper: Keeper) -> None:
        """A new keeper on this node, in place of one that died: it gets the memory that is mapped here."""
        self.keeper, keeper.ledger = keeper, self.ledger
        if self.agent.view is not None:
            for k, one in self.replica.owned.items():
                keeper.hold(k, self.uid, one)

    def without_sent(self, state: OwnedState, tag: int) -> None:
        """The rule of tier 2: zero wherever this virtual worker has sent since the copy of `tag`, or may have."""
        k, sent = state.virtual_worker, SentSince(self.replica.layout.numel)
        parts = self.keeper.shared(self.decided, tag)
        if parts is not None:
            for entry in map(Entry.unpack, parts[1:]):
                if entry.attempt >= tag and entry.messages is not None:
                    sent.add(unpack_of(self.replica.layout, k, entry.messages[k]).positions)
                elif entry.attempt >= tag and entry.total is not None:
                    sent.add_all()
        elif self.ledger.since <= tag:
            sent = self.ledger.sent[k]
        else:
            sent.add_all()
        stale(state.u, state.v, sent.mask())

    def lost_mass(self, virtual_worker: int, tier: Tier) -> float:
        """An upper bound of the norm of what was lost of v, where an orphan came back by this tier."""
        if tier.exact:
            return 0.0
        return lost_mass_bound(self.ledger.mass.v[virtual_worker], self.replica.owned[virtual_worker].v)

    def unprotected(self) -> tuple[int, ...]:
        """The virtual workers hosted here that the loss of this node would cost more than a replay: no other node has
        a complete copy, or the log does not reach back to it."""
        found = []
        for k in self.replica.owned:
            buddy = self.view.buddy(k)
            start = self.agent.kept.get((k, buddy)) if buddy is not None else None
            if start is None or not self.keeper.log.covers(start, self.decided):
                found.append(k)
        return tuple(sorted(found))

    def new_ledger(self, known: bool) -> Ledger:
        """`known`: nothing was sent or accumulated before this attempt."""
        return Ledger(self.replica.settings, self.replica.layout, self.decided, known)

    def packed_shared(self) -> bytes:
        """Shared state as it is now."""
        return serialize.pack(*self.replica.export_shared())

    def given_shared(self) -> bytes:
        """Shared state for a newcomer: with the log where that reaches back, so that it can replay as others can."""
        given = self.keeper.given(self.decided)
        return given if given is not None else bundle([self.packed_shared(), self._noted(), self.ledger.pack()])

    def _noted(self) -> bytes:
        return canonical_json(self.boundary_fields()).encode()

    def boundary_fields(self) -> dict[str, Any]:
        """The counters that boundaries change, and not attempts."""
        counters = self.replica.counters
        return {name: getattr(counters, name) for name in BOUNDARY_FIELDS}

    def take_fields(self, packed: bytes) -> None:
        """The inverse, after the log was followed."""
        for name, value in json.loads(packed).items():
            setattr(self.replica.counters, name, value)

    # --- the life

    def run(self) -> Life[None]:
        """From joining to the end of the run. Raises `Over` where this worker's part ends before that."""
        return life.run(self)

    def due(self) -> tuple[str, ...]:
        """What everyone does together at this boundary."""
        ending = ("checkpoint",) if self.view.ending else ()
        return tuple(dict.fromkeys((*self.program.due(self.decided), *self.extra, *ending)))

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
