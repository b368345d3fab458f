"""One attempt is one transaction: compute, vote, exchange, apply. Until the flip at the end nothing has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from elastic_dgc.errors import TaskFailed
from elastic_dgc.exchange.ask import Kind, Payload, Steps
from elastic_dgc.exchange.gather import gather_virtual
from elastic_dgc.exchange.members import Members
from elastic_dgc.step import counting
from elastic_dgc.step.compute import BatchesOf, compute
from elastic_dgc.step.log import Entry
from elastic_dgc.step.plan import Plan, plan
from elastic_dgc.step.prepare import follow, prepare
from elastic_dgc.step.repair import Surroundings, insist
from elastic_dgc.step.replica import LossFunction, Replica
from elastic_dgc.step.row import ROW_BYTES, Health, Request, Row
from elastic_dgc.step.settings import FaultHook
from elastic_dgc.step.state import OwnedState
from elastic_dgc.step.sums import decode_all, dense_sum, gather_messages
from elastic_dgc.step.vote import Decision, Verdict, decide


@dataclass
class Outcome:
    """What an attempt came to. `hopeless`: it is one of so many skips in a row that more of them are no help; the
    caller is to find out why, and mend it or end the run. `seconds` by part: compute, vote, compress, exchange, apply
    (host time)."""

    attempt: int
    decision: Decision
    committed: bool
    reasons: tuple[str, ...]
    lr: float
    loss_scale: float  # of this attempt
    plan: Plan
    hopeless: bool = False
    upload_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class _Clock:
    """Splits host time into named parts, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now


def attempt(
    replica: Replica,
    members: Members | Surroundings,
    batches: BatchesOf,
    loss: LossFunction,
    *,
    requests: Request = Request.NONE,
    fault: FaultHook = lambda point, attempt: None,
) -> Steps[Outcome]:
    """Run one attempt. Entered by every worker of the view, spares too; all take the same way through it (R5).

    `batches(k)` gives the micro-batches of hosted virtual worker k. On COMMIT weights, owned state and counters move
    on; on SKIP only `attempt`, the counters of skips and the loss scale do (R3). Raises `TaskFailed` on everyone where
    somebody's own code raised, `Disagreement` where workers are not alike.
    """
    settings, counters = replica.settings, replica.counters
    number, clock = counters.attempt, _Clock()
    loss_scale = counters.loss_scale
    lr, planned = settings.lr(counters.applied), plan(settings, replica.layout, counters.applied)

    around = members if isinstance(members, Surroundings) else Surroundings(members)
    rows: dict[int, Row] = {}
    errors: dict[int, Exception] = {}
    places: dict[int, OwnedState] = {}  # where their gradients are
    packed: dict[int, bytes] = {}
    finished: set[int] = set()  # whose messages are made

    def compute_missing() -> None:
        """The gradients of hosted virtual workers: all of them at first, later those of a lost worker."""
        for k in [k for k in rows if replica.owned.get(k) is not places[k]]:  # moved away, perhaps to come back
            del rows[k]
            errors.pop(k, None)
            packed.pop(k, None)
            finished.discard(k)
        for k in sorted(replica.owned.keys() - rows.keys()):
            fault("forward", number)
            places[k] = replica.owned[k]
            rows[k], error = compute(replica, k, batches, loss, requests)
            if error is not None:
                errors[k] = error
        clock.lap("compute")

    compute_missing()
    ahead = _Ahead(replica, around, planned, rows, clock)

    def vote() -> Steps[list[Payload]]:
        # Where others have decided the attempt, its rows are here, even of a virtual worker whose state is not.
        own = {k: around.row(k) or rows[k].pack() for k in around.members.hosted}
        return gather_virtual(
            around.members, Kind.ROW, number, own, phase="vote", deadline_s=settings.deadline_s, sent_point="vote",
            bytes_each=ROW_BYTES, meanwhile=ahead.work if ahead.worthwhile else None,
        )  # fmt: skip

    def vote_again() -> None:
        ahead.give_up()
        replica.settle()
        compute_missing()

    packed_rows = tuple(bytes(row) for row in (yield from insist(vote, vote_again)))
    all_rows = [Row.unpack(row) for row in packed_rows]
    decision = decide(all_rows)
    clock.lap("vote")

    def log(messages: tuple[bytes, ...] | None = None, total: Callable[[], bytes] | None = None) -> None:
        if around.keeps_log:
            around.enter(Entry(number, packed_rows, messages, total() if total is not None else None))

    def outcome(committed: bool, reasons: tuple[str, ...], upload_bytes: int = 0) -> Outcome:
        hopeless = counters.hopeless_in_a_row >= settings.max_skips
        return Outcome(
            number, decision, committed, reasons, lr, loss_scale, planned, hopeless, upload_bytes, clock.seconds
        )

    if decision.verdict is Verdict.ERROR:
        raise TaskFailed(decision.reasons[0]) from errors.get(decision.bad[0])
    if decision.verdict is Verdict.SKIP:
        log()
        _skip(replica, decision.overflowed)
        return outcome(False, decision.reasons)

    packed.update(ahead.packed(decision.count))
    finished.update(ahead.done)

    def prepare_missing() -> None:
        """The messages of hosted virtual workers, and of one that was lost what others hold of it."""
        compute_missing()
        if errors:  # of a virtual worker taken over after its vote was good
            raise TaskFailed(rows[min(errors)].text) from errors[min(errors)]
        for k in sorted(replica.owned.keys() - finished):
            message = around.message(k)
            if message is None:
                packed.update(prepare(replica, planned, decision.count, all_rows, [k]))
            else:
                follow(replica, planned, decision.count, all_rows[k], k, message)
                packed[k] = message
            finished.add(k)
        replica.release()
        for k, one in packed.items():
            around.prepared(k, one)
        clock.lap("compress")

    def own_messages() -> dict[int, bytes]:
        return {k: packed[k] if k in packed else around.message(k) or b"" for k in around.members.hosted}

    prepare_missing()
    if planned.whole:
        upload = yield from insist(
            lambda: dense_sum(
                around.members, replica.layout, planned, number, replica.owned, settings.deadline_s, replica.total
            ),
            prepare_missing,
        )  # fmt: skip
        log(total=lambda: replica.total.flat.cpu().numpy().tobytes())
    else:
        messages = yield from insist(
            lambda: gather_messages(around.members, planned, number, own_messages(), settings.deadline_s),
            prepare_missing,
        )
        decoded = decode_all(replica.layout, planned, number, messages, settings.require_compression)
        replica.total.add_up(replica.layout, decoded)
        upload = sum(map(len, messages))
        around.sent(decoded)
        log(messages=tuple(map(bytes, messages)) if around.keeps_log else None)
    clock.lap("exchange")
    fault("apply", number)
    overflow = replica.applier.apply(replica.total, lr)
    if overflow is not None:
        _skip(replica)
        return outcome(False, (f"the update with learning rate {lr:g} makes {overflow}",))
    for one in replica.owned.values():
        one.flip(number + 1)
        fault("flip", number)
    counting.committed(counters, settings, decision, upload, 4 * replica.layout.numel * settings.virtual_workers)
    fault("commit", number)
    clock.lap("apply")
    return outcome(True, (), upload)


class _Ahead:
    """The compression of the last hosted virtual worker, done while the others' rows are on their way, for the case
    that they are all good and count what full shares count. If not, nothing is lost: u and v are as they were, what
    was written are their other copies, and the gradient is still there.
    """

    def __init__(
        self, replica: Replica, around: Surroundings, plan: Plan, rows: Mapping[int, Row], clock: _Clock
    ) -> None:
        self._replica, self._around, self._plan, self._rows, self._clock = replica, around, plan, rows, clock
        self._count = replica.settings.share * replica.settings.virtual_workers
        self._packed: dict[int, bytes] = {}
        self.done: set[int] = set()

    @property
    def worthwhile(self) -> bool:
        """Whether the gradient could be read again, and a commit of full shares is to be expected."""
        good = all(row.health is Health.GOOD for row in self._rows.values())
        return bool(self._replica.kept) and self._replica.full_steps and good

    def work(self) -> None:
        last = self._replica.last
        if self._around.message(last) is not None:  # it was made by another, and is to be followed
            return
        self._clock.lap("vote")
        self._packed = prepare(self._replica, self._plan, self._count, self._rows, [last])
        self.done = {last}
        self._clock.lap("compress")

    def give_up(self) -> None:
        """Whatever was done: it is to be done again."""
        self._packed, self.done = {}, set()

    def packed(self, count: int) -> dict[int, bytes]:
        """What was done, after a vote that commits: the packed messages; nothing if another count was voted."""
        self._replica.full_steps = count == self._count
        if not self._replica.full_steps:
            self.done = set()
        return dict(self._packed) if self.done else {}


def _skip(replica: Replica, overflowed: bool = False) -> None:
    """SKIP: nothing changes but counters and loss scale. The samples count as consumed."""
    counting.skipped(replica.counters, replica.settings, overflowed)
    for one in replica.owned.values():
        one.tag = replica.counters.attempt
