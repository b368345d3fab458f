"""A worker's life in a run: enter a view, make attempts, do what is due at boundaries, follow every change of view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_dgc.membership import control as say
from elastic_dgc.precision.finite import joint_norm
from elastic_dgc.protocol import change, joining
from elastic_dgc.protocol.asks import drive
from elastic_dgc.protocol.copies import snapshots
from elastic_dgc.protocol.wait import COORDINATOR, Life, Out, Overtaken
from elastic_dgc.step.attempt import attempt
from elastic_dgc.step.repair import Rearranged
from elastic_dgc.step.row import Request

if TYPE_CHECKING:
    from elastic_dgc.protocol.member import Member


def run(m: Member) -> Life[None]:
    """From joining to the end of the run. Raises `Over` where this worker's part ends before that."""
    step = joining.join
    while True:
        try:
            yield from step(m)
            step = _attempt
            yield from boundary(m)
            if m.decided >= m.program.end or m.view.ending:
                break
        except Overtaken:
            step = joining.catch_up
    m.agent.doing = ("done", m.decided, -1)
    yield from m.wait((Out(COORDINATOR, say.Done(m.uid, m.view.number)),), lambda: True, "finish", 1.0)


def _attempt(m: Member) -> Life[None]:
    """One attempt, in however many views it takes."""
    number = m.decided
    m.stage = len(m.due())  # all that was due at the boundary before this attempt is done

    begun: set[int] = set()

    def fault(point: str, attempt_number: int) -> None:
        if point == "forward":  # whose it is, should the process die of it
            virtual_worker = min(m.replica.owned.keys() - begun, default=-1)
            begun.add(virtual_worker)
            m.agent.doing = ("forward", number, virtual_worker)
        m.fault(point, attempt_number)

    applied = m.replica.counters.applied
    norm = float(joint_norm(m.replica.weights)) if m.ledger.wants_norm() else None
    steps = attempt(
        m.replica, m, lambda k: m.program.batches(number, k), m.program.loss, requests=_requests(m), fault=fault
    )
    outcome = yield from drive(m, steps, lambda: boundary(m))
    m.stage = 0
    assert m.newest is not None
    m.ledger.decided(m.newest, applied, outcome.committed, norm, m.decoded)
    m.decoded = None
    m.program.applied(outcome, m.replica)
    # The vote of this attempt returned, so everyone decided the one before it (R9).
    m.agent.post.forget(number)
    requests = outcome.decision.requests
    m.extra = ("checkpoint",) if Request.CHECKPOINT in requests else ()
    if Request.CHECKPOINT in requests:
        m.told = m.agent.coordinator_lost
    if m.closing is not None:
        yield from change.close(m)
    else:
        yield from _keep_copies(m, number)
        if Request.VIEW in requests:
            yield from _announced(m)


def _requests(m: Member) -> Request:
    asked = Request.VIEW if m.agent.pending else Request.NONE
    if m.agent.coordinator_lost and not m.told:
        asked |= Request.CHECKPOINT
    return asked


def _announced(m: Member) -> Life[None]:
    """A boundary that a vote announced: the coordinator changes the view now, or training goes on without."""
    m.agent.pending = False
    boundary = say.Boundary(m.uid, m.view.number, m.decided)
    m.agent.doing = ("boundary", m.decided, -1)
    yield from m.wait((Out(COORDINATOR, boundary),), lambda: m.agent.changing, "boundary", m.limits.boundary_s)
    if m.agent.changing:
        yield from change.change(m)


def _keep_copies(m: Member, settled: int) -> Life[None]:
    """Shared state at the start of a round; a chunk of every hosted virtual worker's owned state to its buddy."""
    if m.decided % m.keeper.chunks == 0:
        m.keeper.snapshot(m.decided, m.packed_shared)
    outs = snapshots(m, settled)
    if outs:
        yield from m.wait(tuple(outs), lambda: True, "copy", 1.0, sent_point="copy")


def boundary(m: Member) -> Life[None]:
    """Everything that is due here, once on everyone, or again where the view changed before all had done it."""
    while True:
        try:
            yield from _together(m)
            return
        except Rearranged:
            continue  # `stage` is what the slowest had done


def _together(m: Member) -> Life[None]:
    due = m.due()
    while m.stage < len(due):
        what = due[m.stage]
        m.agent.doing = (what, m.decided, -1)
        m.fault(what, m.decided)
        steps = m.program.together(what, m.replica, m.members, m.decided, m.view.number)
        yield from drive(m, steps, None)
        m.stage += 1
        m.keeper.note(m.decided, m.boundary_fields())
        if what == "checkpoint":
            m.ledger.saved(m.decided)
