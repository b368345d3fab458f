"""The keeper of a node: its memory outlives the training processes there. It holds their owned state, the shared
state's snapshots and the log since, and rolling snapshots of virtual workers on other nodes.

Training processes of the node use it by shared memory (the methods), everyone else by letters (`hear`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_dgc.errors import MessageError
from elastic_dgc.keeping.canonical import canonical_json
from elastic_dgc.keeping.piece import unpack_piece
from elastic_dgc.keeping.rolling import RollingCopy
from elastic_dgc.membership import control as say
from elastic_dgc.membership.roster import View
from elastic_dgc.protocol.bundle import bundle
from elastic_dgc.protocol.ledger import Ledger
from elastic_dgc.protocol.letters import Fetch, Given, Kept, Probe, Reached, Snapshot, copy_of
from elastic_dgc.protocol.packing import pack_owned
from elastic_dgc.protocol.wait import COORDINATOR, Out
from elastic_dgc.step.log import AttemptLog, Entry
from elastic_dgc.step.state import OwnedState

NOTES = 3  # a view is closed at the newest boundary or the one before


@dataclass
class Slot:
    """A virtual worker's memory on this node. `uid`: whose it was last."""

    uid: str
    state: OwnedState
    message: tuple[int, bytes] | None = None  # of which attempt, packed


class Keeper:
    """One node's. `chunks`: of a round (S); `ended(uid)` ends a training process of this node and returns when it is
    gone: only then is its memory given away."""

    def __init__(self, node: str, run: str, budget_bytes: int, chunks: int, ended: Callable[[str], None]) -> None:
        self.node, self.run, self.chunks = node, run, chunks
        self.number = 0  # the highest view that was fenced or installed
        self._installed = 0
        self.slots: dict[int, Slot] = {}
        self._budget_bytes = budget_bytes
        self.log = AttemptLog(budget_bytes)
        self.rolling: dict[int, RollingCopy] = {}
        self.ledger: Ledger | None = None  # of the training processes here
        self.offered: dict[int, tuple[str, OwnedState]] = {}  # handed over, for a view that is not installed yet
        self.refused = 0
        self._snapshots: list[tuple[int, bytes]] = []
        self._decided_in: dict[int, int] = {}  # views, by the attempts of the log's entries
        self._notes: dict[int, bytes] = {}  # by the attempts decided: what boundaries changed in shared state
        self._ended = ended
        self._orphans: frozenset[int] = frozenset()  # of the present view, which may still ask for a copy
        self._buddies: frozenset[int] = frozenset()  # whose rolling snapshot comes here in the present view

    # --- by the training processes of this node

    def hold(self, virtual_worker: int, uid: str, state: OwnedState) -> None:
        """This process hosts a virtual worker now."""
        self.slots[virtual_worker] = Slot(uid, state)

    def offer(self, virtual_worker: int, uid: str, state: OwnedState) -> None:
        """This process was given a virtual worker's state; its own once the view is installed."""
        self.offered[virtual_worker] = (uid, state)

    def take_offered(self, virtual_worker: int, uid: str, closed_at: int) -> OwnedState | None:
        """The view is installed: what was offered to this process, if it is of that attempt."""
        to, state = self.offered.get(virtual_worker, ("", None))
        if to != uid or state is None or state.tag != closed_at:
            return None
        del self.offered[virtual_worker]
        self.hold(virtual_worker, uid, state)
        return state

    def learn(self, tag: int, shared: bytes, entries: Sequence[Entry]) -> None:
        """A process of this node has come by shared state, with the log since; a keeper that knows more keeps that."""
        known, newest, high = self.shared_range, self.log.newest, tag + len(entries)
        if (known is None or known[1] < high) and (newest is None or newest.attempt < high):
            self._snapshots, self.log, self._decided_in = [(tag, shared)], AttemptLog(self._budget_bytes), {}
            for entry in entries:
                self.log.add(entry)

    def prepared(self, virtual_worker: int, attempt: int, message: bytes) -> None:
        self.slots[virtual_worker].message = (attempt, message)

    def decided(self, entry: Entry, view: int) -> None:
        """Called by each process of the node, before it applies; the first one of the newest view counts. What was
        decided in an older one and is decided again was of a history that did not go on."""
        if view < self._installed:
            return
        if self.log.covers(entry.attempt, entry.attempt + 1) and self._decided_in.get(entry.attempt, 0) < view:
            self._cut(entry.attempt)
        newest = self.log.newest
        if newest is None or entry.attempt > newest.attempt:
            self.log.add(entry)
            self._decided_in[entry.attempt] = view

    def _cut(self, attempt: int) -> None:
        """Forget this attempt and what followed."""
        self.log.cut(attempt)
        self._decided_in = {one: view for one, view in self._decided_in.items() if one < attempt}
        self._snapshots = [one for one in self._snapshots if one[0] <= attempt]
        self._notes = {one: fields for one, fields in self._notes.items() if one <= attempt}

    def snapshot(self, tag: int, shared: Callable[[], bytes]) -> None:
        """Shared state at the start of a round, or where there is nothing yet. Taken once for the node."""
        if tag in (known for known, _ in self._snapshots):
            return
        self._snapshots.append((tag, shared()))
        # A rolling snapshot begins with a round, and is complete a round later: none in use begins before that.
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= tag - 2 * self.chunks:
            del self._snapshots[0]
        oldest = self._snapshots[0][0]
        self.log.forget(oldest)
        self._decided_in = {one: view for one, view in self._decided_in.items() if one >= oldest}

    def note(self, decided: int, fields: Mapping[str, Any]) -> None:
        """What was done together at a boundary changed these counters, which do not follow from the log."""
        self._notes[decided] = canonical_json(dict(fields)).encode()
        for old in sorted(self._notes)[:-NOTES]:
            del self._notes[old]

    def notes(self, closed_at: int) -> bytes:
        """The last of these. What was done of the boundary at `closed_at` itself is among them: what not everyone has
        done there is done again, and replaces it."""
        known = [decided for decided in self._notes if decided <= closed_at]
        return self._notes[max(known)] if known else b"{}"

    def shared(self, closed_at: int, tag: int | None = None) -> list[bytes] | None:
        """The newest snapshot at or before `tag` (the oldest there is, without), and the entries from it up to
        `closed_at`. None where some are gone."""
        fit = [one for one in self._snapshots if one[0] <= (closed_at if tag is None else tag)]
        fit = fit[:1] if tag is None else fit[-1:]
        for known, state in fit:
            if self.log.covers(known, closed_at):
                entries = [] if known == closed_at else self.log.since(known)
                return [state, *(one.pack() for one in entries if one.attempt < closed_at)]
        return None

    def given(self, closed_at: int) -> bytes | None:
        """All that a newcomer needs: the oldest snapshot, the notes, the log."""
        parts = self.shared(closed_at)
        if parts is None:
            return None
        ledger = self.ledger.pack() if self.ledger is not None and self.ledger.attempt == closed_at else b""
        return bundle([parts[0], self.notes(closed_at), ledger, *parts[1:]])

    @property
    def shared_range(self) -> tuple[int, int] | None:
        """The attempts (low, high) at which `shared` can be given."""
        newest = self.log.newest
        for known, _ in self._snapshots:
            high = max(known, newest.attempt + 1 if newest is not None else 0)
            if self.log.covers(known, high):
                return known, high
        return None

    # --- letters

    def hear(self, sender: str, letter: object) -> list[Out]:
        match letter:
            case Probe():
                return [Out(sender, Reached(letter.number))]
            case say.Fence():
                self.number = max(self.number, letter.number)
                return [Out(COORDINATOR, self.inventory(letter.number))]
            case say.Plan():
                return self._carry_out(letter)
            case say.Install():
                self._install(letter.view)
            case Fetch():
                return [Out(sender, self._fetch(letter))]
            case Snapshot():
                kept = self._keep(letter)
                return [Out(sender, kept)] if kept is not None else []
            case _:
                pass  # what the coordinator tells everybody
        return []

    def inventory(self, number: int) -> say.Inventory:
        held = [say.Held(k, slot.state.tag, slot.message[0] if slot.message else -1) for k, slot in self.slots.items()]
        held += [say.Held(k, state.tag) for k, (_, state) in self.offered.items()]
        held += [say.Held(k, one.newest_tag, rolling=True) for k, one in self.rolling.items() if one.newest_tag >= 0]
        return say.Inventory(self.node, number, tuple(held), self.shared_range)

    def _carry_out(self, plan: say.Plan) -> list[Out]:
        mine = f"keeper:{self.node}"
        outs = []
        for one in plan.transfers:
            if one.sender != mine:
                continue
            payload: bytes | None = None
            if one.what == "entry" and self.log.covers(one.attempt, one.attempt + 1):
                payload = next(e for e in self.log.since(one.attempt)).pack()
            elif one.what == "message" and one.virtual_worker in self.slots:
                message = self.slots[one.virtual_worker].message
                payload = message[1] if message is not None and message[0] == one.attempt else None
            elif one.what == "shared":
                payload = self.given(plan.closed_at)
            reason = "" if payload is not None else f"the keeper of {self.node} has it no more"
            outs.append(Out(one.to, Given(plan.number, one.what, one.attempt, one.virtual_worker, payload, reason)))
        return outs

    def _install(self, view: View) -> None:
        """Copies that neither this view nor the one before may ask for are freed. A view may be announced again."""
        if view.number <= self._installed:
            return
        self.number, self._installed = max(self.number, view.number), view.number
        here = {k for k, host in enumerate(view.hosts) if view.workers[host].node == self.node}
        # Of an orphan everything is kept, named as its source or not: this node may not have been reached in time.
        orphans = frozenset(view.sources)
        self.slots = {k: slot for k, slot in self.slots.items() if k in here | orphans | self._orphans}
        buddies = frozenset(k for k in range(len(view.hosts)) if view.buddy(k) == self.node)
        kept = buddies | self._buddies | orphans | self._orphans  # until the next buddy has a whole round
        self.rolling = {k: one for k, one in self.rolling.items() if k in kept}
        self._orphans, self._buddies = orphans, buddies
        for copy in self.rolling.values():
            copy.forget_after(view.closed_at, view.number)

    def _fetch(self, letter: Fetch) -> Given:
        k = letter.virtual_worker
        payload, reason = None, f"the keeper of {self.node} has no copy of virtual worker {k}"
        if letter.view < self.number:
            reason = f"view {letter.view} is the past"
        elif letter.rolling and k in self.rolling:
            fit = self.rolling[k].fit(letter.closed_at)
            damaged = ", ".join(self.rolling[k].damaged)
            reason = f"passed over at {self.node}, damaged: {damaged}" if damaged else ""
            if fit is None:
                reason = "; ".join(filter(None, (f"the rolling copy of virtual worker {k} is not complete", reason)))
            payload = bundle(fit.pieces) if fit is not None else None
        elif not letter.rolling:
            copies = [(slot.uid, slot.state) for at, slot in self.slots.items() if at == k]
            copies += [one for at, one in self.offered.items() if at == k]
            for uid, _ in copies:
                self._ended(uid)
            tags = [state.tag for _, state in copies]
            fits = [state for _, state in copies if state.tag <= letter.closed_at]
            if tags and not fits:
                reason = f"the copy of virtual worker {k} at {self.node} has tag {tags[0]}, above {letter.closed_at}"
            elif fits:
                payload = pack_owned(max(fits, key=lambda state: state.tag))
        return Given(letter.view, copy_of(self.node, letter.rolling), letter.closed_at, k, payload, reason)

    def _keep(self, letter: Snapshot) -> Kept | None:
        """Take a piece in. At the end of a round its owner is told whether the copy is complete."""
        if letter.view < self.number:
            self.refused += 1
            return None
        try:
            piece = unpack_piece(letter.payload, self.run)
        except MessageError:
            self.refused += 1  # a damaged copy is none; its predecessor stays
            return None
        copy = self.rolling.setdefault(letter.virtual_worker, RollingCopy(self.chunks))
        copy.put(piece)
        copy.settle(letter.settled)
        return Kept(self.node, letter.virtual_worker, copy.start) if piece.index == self.chunks - 1 else None
