"""What happened in a simulated run, as the oracles need it, and what was found wrong on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from elastic_dgc.membership import control as say
from elastic_dgc.membership.records import Fenced
from elastic_dgc.membership.roster import Tier, View
from elastic_dgc.protocol.letters import Fetch, Frame, Snapshot
from elastic_dgc.protocol.wait import Out
from elastic_dgc.simulation.digest import bytes_digest, shared_digest
from elastic_dgc.simulation.shares import Share, share_of
from elastic_dgc.step.attempt import Outcome
from elastic_dgc.step.log import Entry
from elastic_dgc.step.replica import Replica

if TYPE_CHECKING:
    from elastic_dgc.simulation.processes import KeeperProcess, WorkerProcess
    from elastic_dgc.simulation.world import World


@dataclass(frozen=True)
class Seen:
    """What a worker came to with an attempt: outcome, digest of shared state, and whom it hosted in which view."""

    uid: str
    view: int
    attempt: int
    committed: bool
    reasons: tuple[str, ...]
    digest: str
    hosted: frozenset[int]


@dataclass(frozen=True)
class Return:
    """An orphan that came back at `attempt`, as its new host told the coordinator, with v as it was there. `history`:
    what was known of it by then, by attempt."""

    view: int
    virtual_worker: int
    attempt: int
    tier: Tier
    passed_over: tuple[str, ...]
    lost_mass: float
    v: Tensor = field(repr=False)
    history: Mapping[int, Share] = field(repr=False)


class Watch:
    """`wrong` is what was found on the way; the rest is judged at the end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wrong: list[str] = []
        self.seen: list[Seen] = []
        self.entries: dict[int, Entry] = {}
        self.shares: dict[tuple[int, int], Share] = {}  # by (attempt, virtual worker), of the one history
        self.returns: list[Return] = []
        self.rates: dict[int, float] = {}  # learning rate by attempt that was committed
        self.decisions: dict[int, dict[str, str]] = defaultdict(dict)  # digest of the entry, by attempt and worker

    def _say(self, text: str) -> None:
        if text not in self.wrong:
            self.wrong.append(text)

    # --- by members

    def entered(self, process: WorkerProcess, entry: Entry) -> None:
        """An attempt is decided at this worker."""
        member = process.member
        assert member is not None
        self.decisions[entry.attempt][process.address] = bytes_digest(entry.pack())
        self.entries[entry.attempt] = entry
        self.rates.pop(entry.attempt, None)
        if entry.has_sum:
            settings, counters = member.replica.settings, member.replica.counters
            self.rates[entry.attempt] = settings.lr(counters.applied)
            self.share(process)

    def share(self, process: WorkerProcess) -> None:
        """What each virtual worker here adds with the open attempt: taken before anything is written or lost."""
        member = process.member
        if member is None:
            return
        for k, one in member.replica.owned.items():
            share = share_of(member, k, one)
            if share is not None:
                self.shares[member.decided, k] = share

    def decided(self, process: WorkerProcess, attempt: int, replica: Replica, outcome: Outcome) -> None:
        view = process.agent.view
        assert view is not None
        hosted, by_view = frozenset(replica.owned), set(view.hosted(process.address))
        # Whoever finishes an attempt by what a flush brought may still be waiting for an orphan.
        late = process.member is not None and process.member.closing is not None
        if not hosted <= by_view or (hosted != by_view and not late):
            self._say(f"{process.address} has {sorted(hosted)}, in view {view.number} {view.hosted(process.address)}")
        self.seen.append(
            Seen(
                process.address, view.number, attempt, outcome.committed, outcome.reasons, shared_digest(replica),
                hosted,
            )
        )  # fmt: skip

    def installed(self, process: WorkerProcess, view: View) -> None:
        """One owner per virtual worker and view: nobody keeps what the view gives to another."""
        member = process.member
        assert member is not None
        if view not in self.world.views:
            self._say(f"{process.address} installed view {view.number}, which nobody wrote down")
        extra = member.replica.owned.keys() - set(view.hosted(process.address))
        if extra:
            self._say(f"{process.address} keeps {sorted(extra)}, which view {view.number} gives to others")
        if member.decided != view.closed_at:
            self._say(f"{process.address} begins view {view.number} at {member.decided}, not at {view.closed_at}")

    # --- by processes

    def delivered(self, process: WorkerProcess, letter: object, refused_before: int) -> None:
        """No frame of an older view than the receiver has seen is taken in."""
        written = (one.number for one in self.world.platform.records if isinstance(one, Fenced))
        if isinstance(letter, say.Fence) and letter.number not in written:
            self._say(f"{process.address} is fenced with {letter.number}, which nobody wrote down")
        old = isinstance(letter, Frame) and letter.view < process.agent.number
        if isinstance(letter, Frame) and old and len(process.agent.post.refused) == refused_before:
            self._say(f"{process.address} took in a frame of view {letter.view} at {process.agent.number}")

    def kept(self, process: KeeperProcess, letter: object, number_before: int, refused_before: int) -> None:
        """No copy of an older view than the keeper has seen is taken in."""
        old = isinstance(letter, Snapshot) and letter.view < number_before
        if isinstance(letter, Snapshot) and old and process.keeper.refused == refused_before:
            self._say(f"{process.address} took in a copy of view {letter.view} at {number_before}")

    def served(self, process: KeeperProcess, letter: object, owners: list[str], outs: list[Out]) -> None:
        """Nobody is given memory that a process still works in."""
        given = isinstance(letter, Fetch) and any(getattr(out.letter, "payload", None) is not None for out in outs)
        for one in self.world.platform.workers:
            if given and one.alive and one.address in owners:
                self._say(f"{process.address} gave away memory that {one.address} works in")

    def sent(self, process: WorkerProcess, out: Out) -> None:
        """A host tells that an orphan is there."""
        letter, member = out.letter, process.member
        if isinstance(letter, say.Hosted) and member is not None and letter.virtual_worker in member.replica.owned:
            k, attempt = letter.virtual_worker, member.decided
            known = {n: share for (n, whose), share in self.shares.items() if whose == k and n < attempt}
            history = {n: known[n] for n in sorted(known, reverse=True) if n in self.rates}
            v = member.replica.owned[k].v.clone()
            self.returns.append(
                Return(letter.view, k, attempt, Tier(letter.tier), letter.passed_over, letter.lost_mass, v, history)
            )

    def waited(self, process: WorkerProcess, phase: str, deadline_s: float, waited_s: float) -> None:
        """No wait is longer than its phase allows."""
        limits = self.world.setting.limits
        try:
            allowed_s = limits.of_phase(phase)
        except KeyError:
            allowed_s = limits.pause_s if phase == "joining" else 1.0
        if phase == "flush":
            allowed_s = max(limits.flush_s, limits.pause_s)  # a coordinator that is away, or too few workers
        if phase == "rehost":
            allowed_s += limits.exact_wait_s
        if deadline_s > allowed_s + 1e-9:
            self._say(f"{process.address} waits in '{phase}' for {deadline_s:g} s, {allowed_s:g} s are allowed")
        if waited_s > deadline_s + 1e-6:
            self._say(f"{process.address} waited in '{phase}' for {waited_s:g} s of {deadline_s:g} s")
