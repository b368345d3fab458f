"""Shared state through attempts that were logged: how whoever is behind, or comes from a copy of the past, catches up.

Weights, optimizer and counters follow from the log alone; no gradient is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elastic_dgc.compression import values as wire
from elastic_dgc.errors import Disagreement, MessageError
from elastic_dgc.step import counting
from elastic_dgc.step.log import Entry
from elastic_dgc.step.plan import plan
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.row import Row
from elastic_dgc.step.sums import decode_all
from elastic_dgc.step.vote import Decision, Verdict, decide


def advance(replica: Replica, entries: Sequence[Entry]) -> None:
    """Bring shared state (weights, optimizer, counters) forward through logged attempts, without any gradient: bitwise
    the state of those who took part. Owned state is not touched.

    Raises ValueError where the entries do not follow the replica's `attempt`, `MessageError` on a damaged one,
    `Disagreement` where one is not of this state or does not come out as it did then. Entries before that one are
    applied then.
    """
    for entry in entries:
        _, decision = read_entry(replica, entry)
        apply_entry(replica, entry, decision)


def read_entry(replica: Replica, entry: Entry) -> tuple[list[Row], Decision]:
    """The rows of an entry and what they decide, checked against the state that it is to go on from."""
    counters, number = replica.counters, entry.attempt
    if number != counters.attempt:
        raise ValueError(f"the log's entry of attempt {number} does not follow a state of {counters.attempt} attempts")
    rows = [Row.unpack(row) for row in entry.rows]
    if len(rows) != replica.settings.virtual_workers:
        raise MessageError(f"attempt {number}: {len(rows)} rows for {replica.settings.virtual_workers} virtual workers")
    decision = decide(rows)
    here = (number, counters.applied, counters.loss_scale, replica.settings.identity)
    logged = (rows[0].attempt, rows[0].applied, rows[0].loss_scale, rows[0].identity)
    if here != logged:
        raise Disagreement(
            f"the log's entry of attempt {number} is of (attempt, applied, loss scale, settings) {logged}, this state "
            f"of {here}: they are not of one history; take a copy and a log of the same view"
        )
    skip = decision.verdict is Verdict.SKIP
    if decision.verdict is Verdict.ERROR or (skip and (entry.committed or entry.has_sum)):
        raise MessageError(f"attempt {number}: its rows decide '{decision.verdict.value}', its entry says otherwise")
    if not skip and not entry.has_sum and entry.committed is not False:
        raise MessageError(f"attempt {number}: committed, but its log entry has neither messages nor a sum")
    return rows, decision


def is_skip(entry: Entry, decision: Decision) -> bool:
    """Whether an attempt is known to have changed nothing before its update is tried."""
    return decision.verdict is Verdict.SKIP or not entry.has_sum


@torch.no_grad()
def apply_entry(replica: Replica, entry: Entry, decision: Decision) -> bool:
    """One entry onto shared state, the counters included. Returns whether it was a commit."""
    settings, counters, layout = replica.settings, replica.counters, replica.layout
    if is_skip(entry, decision):
        counting.skipped(counters, settings, decision.overflowed)
        return False
    planned = plan(settings, layout, counters.applied)
    if planned.whole != (entry.total is not None):
        kinds = ("whole", "sparse") if planned.whole else ("sparse", "whole")
        raise Disagreement(f"attempt {entry.attempt} is {kinds[0]} by these settings, {kinds[1]} in the log")
    if entry.messages is not None:
        replica.total.add_up(layout, decode_all(layout, planned, entry.attempt, entry.messages))
        upload = sum(map(len, entry.messages))
    else:
        whole = wire.from_bytes(entry.total or b"", "fp32", layout.numel).data
        replica.total.take(whole.to(replica.total.flat.device))
        upload = settings.virtual_workers * wire.size(planned.values, layout.numel)
    refused = replica.applier.apply(replica.total, settings.lr(counters.applied))
    if entry.committed is not None and entry.committed != (refused is None):
        outcome = f"the update makes {refused}" if refused else "the update is finite"
        raise Disagreement(f"attempt {entry.attempt}: {outcome}, its entry says otherwise: another state or settings")
    if refused is not None:
        counting.skipped(counters, settings, overflowed=False)
        return False
    counting.committed(counters, settings, decision, upload, 4 * layout.numel * settings.virtual_workers)
    return True
