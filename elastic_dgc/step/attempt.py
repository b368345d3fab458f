"""One attempt is one transaction: compute, vote, exchange, apply. Until the flip at the end nothing has changed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from elastic_dgc.compression.accumulate import Rule, accumulate
from elastic_dgc.compression.dgc import clip_factor, compress
from elastic_dgc.errors import TaskFailed
from elastic_dgc.exchange.ask import Kind, Steps
from elastic_dgc.exchange.gather import gather_virtual
from elastic_dgc.exchange.members import Members
from elastic_dgc.step.compute import BatchesOf, compute
from elastic_dgc.step.plan import Plan, plan
from elastic_dgc.step.replica import LossFunction, Replica
from elastic_dgc.step.row import ROW_BYTES, Health, Request, Row
from elastic_dgc.step.settings import FaultHook
from elastic_dgc.step.sums import dense_sum, sparse_sum
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
    members: Members,
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

    rows, errors = {}, {}
    for k in sorted(replica.owned):
        fault("forward", number)
        rows[k], error = compute(replica, k, batches, loss, requests)
        if error is not None:
            errors[k] = error
    clock.lap("compute")
    ahead = _Ahead(replica, planned, rows, clock)
    packed_rows = yield from gather_virtual(
        members, Kind.ROW, number, {k: row.pack() for k, row in rows.items()}, phase="vote",
        deadline_s=settings.deadline_s, sent_point="vote", bytes_each=ROW_BYTES,
        meanwhile=ahead.work if ahead.worthwhile else None,
    )  # fmt: skip
    all_rows = [Row.unpack(row) for row in packed_rows]
    decision = decide(all_rows)
    clock.lap("vote")

    def outcome(committed: bool, reasons: tuple[str, ...], upload_bytes: int = 0) -> Outcome:
        hopeless = counters.hopeless_in_a_row >= settings.max_skips
        return Outcome(
            number, decision, committed, reasons, lr, loss_scale, planned, hopeless, upload_bytes, clock.seconds
        )

    if decision.verdict is Verdict.ERROR:
        raise TaskFailed(decision.reasons[0]) from errors.get(decision.bad[0])
    if decision.verdict is Verdict.SKIP:
        _skip(replica, decision.overflowed)
        return outcome(False, decision.reasons)

    packed = ahead.packed(decision.count)
    packed |= _compress(replica, planned, decision.count, all_rows, [k for k in replica.owned if k not in ahead.done])
    replica.release()
    clock.lap("compress")
    if planned.whole:
        upload = yield from dense_sum(
            members, replica.layout, planned, number, replica.owned, settings.deadline_s, replica.total
        )
    else:
        upload = yield from sparse_sum(
            members, replica.layout, planned, number, packed, settings.deadline_s, replica.total,
            settings.require_compression,
        )  # fmt: skip
    clock.lap("exchange")
    fault("apply", number)
    overflow = replica.applier.apply(replica.total, lr)
    if overflow is not None:
        _skip(replica)
        return outcome(False, (f"the update with learning rate {lr:g} makes {overflow}",))
    for one in replica.owned.values():
        one.flip()
    counters.attempt += 1
    counters.applied += 1
    counters.skips_in_a_row = counters.hopeless_in_a_row = 0
    counters.loss_scale, counters.scale_tracker = settings.loss_scale.applied(
        counters.loss_scale, counters.scale_tracker
    )
    counters.samples += decision.samples
    counters.upload_bytes += upload
    counters.dense_bytes += 4 * replica.layout.numel * members.virtual_workers
    fault("commit", number)
    clock.lap("apply")
    return outcome(True, (), upload)


class _Ahead:
    """The compression of the last hosted virtual worker, done while the others' rows are on their way, for the case
    that they are all good and count what full shares count. If not, nothing is lost: u and v are as they were, what
    was written are their other copies, and the gradient is still there.
    """

    def __init__(self, replica: Replica, plan: Plan, rows: Mapping[int, Row], clock: _Clock) -> None:
        self._replica, self._plan, self._rows, self._clock = replica, plan, rows, clock
        self._count = replica.settings.share * replica.settings.virtual_workers
        self._packed: dict[int, bytes] = {}
        self.done: set[int] = set()

    @property
    def worthwhile(self) -> bool:
        """Whether the gradient could be read again, and a commit of full shares is to be expected."""
        good = all(row.health is Health.GOOD for row in self._rows.values())
        return bool(self._replica.kept) and self._replica.full_steps and good

    def work(self) -> None:
        self._clock.lap("vote")
        last = self._replica.last
        self._packed = _compress(self._replica, self._plan, self._count, self._rows, [last])
        self.done = {last}
        self._clock.lap("compress")

    def packed(self, count: int) -> dict[int, bytes]:
        """What was done, after a vote that commits: the packed messages; nothing if another count was voted."""
        self._replica.full_steps = count == self._count
        if not self._replica.full_steps:
            self.done = set()
        return dict(self._packed) if self.done else {}


@torch.no_grad()
def _compress(
    replica: Replica, plan: Plan, global_count: int, rows: Mapping[int, Row] | Sequence[Row], which: Sequence[int]
) -> dict[int, bytes]:
    """Scale, clip, weight decay, momentum: these hosted virtual workers' other copies become u' and v'. Where the plan
    is sparse, what is to be sent is taken out of them: returns the packed messages. `rows` by virtual worker."""
    settings, layout = replica.settings, replica.layout
    scale = settings.share / global_count / replica.counters.loss_scale
    decay = settings.local_decay / settings.virtual_workers
    weights = replica.weights_for_decay() if decay else replica.weights
    packed = {}
    for k in sorted(which):
        one = replica.owned[k]
        factor = scale
        if settings.compression.clip is not None:
            norm = rows[k].gradient_norm * scale
            factor *= clip_factor(norm, settings.compression.clip, settings.virtual_workers)
        rules = {
            vector: Rule(factor, 0.0 if vector and not settings.optimizer.decay_vectors else decay, settings.momentum)
            for vector in (False, True)
        }
        accumulate(
            layout, [rules[len(segment.shape) < 2] for segment in layout.segments], plan.density, one.other_v, weights,
            one.u, one.v, one.other_u, one.other_v, replica.workspace, apart=replica.kept_of(k),
        )  # fmt: skip
        if not plan.whole:
            packed[k] = compress(
                layout, plan.values, plan.density, one.other_u, one.other_v, settings.compression.masking,
                replica.workspace,
            )  # fmt: skip
    return packed


def _skip(replica: Replica, overflowed: bool = False) -> None:
    """SKIP: nothing changes but counters and loss scale. The samples count as consumed."""
    counters = replica.counters
    before, counters.scale_tracker = counters.loss_scale, 0
    if overflowed:
        counters.loss_scale = replica.settings.loss_scale.overflowed(before)
    counters.attempt += 1
    counters.skipped += 1
    counters.skips_in_a_row += 1
    counters.hopeless_in_a_row += counters.loss_scale == before
