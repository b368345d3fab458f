"""How a newcomer comes into a view: it says hello, is given shared state at a boundary, proves it, acknowledges."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from elastic_dgc.errors import ProtocolError
from elastic_dgc.keeping import serialize
from elastic_dgc.membership import control as say
from elastic_dgc.protocol import change
from elastic_dgc.protocol.bundle import unbundle
from elastic_dgc.protocol.ledger import Ledger
from elastic_dgc.protocol.wait import COORDINATOR, STORAGE, Life, Out
from elastic_dgc.step.advance import advance
from elastic_dgc.step.log import Entry

if TYPE_CHECKING:
    from elastic_dgc.protocol.member import Member


def join(m: Member) -> Life[None]:
    """From hello to an installed view, all hosted virtual workers in place."""
    agent = m.agent
    outs: tuple[Out, ...] = (agent.hello(),)
    while True:
        number = agent.number
        in_time = yield from m.wait(
            outs, lambda: agent.plan is not None or agent.installed is not None, "joining", m.limits.pause_s
        )
        outs = ()
        if not in_time:
            raise agent.end("alone", "the coordinator had no place for this worker")
        plan, number = agent.plan, agent.number
        if agent.installed is not None and agent.installed.number == number:
            if (yield from change.take_over(m, agent.installed)):
                return
            yield from change.change(m)  # a loss while orphans were fetched: it is a member now
            return
        if plan is None or plan.number != number:
            agent.plan = None
            continue
        if not (yield from _begin(m, plan)):
            agent.plan = None if agent.plan is plan else agent.plan
            continue
        m.fault("acknowledge", m.decided)
        in_time = yield from m.wait(
            (Out(COORDINATOR, say.Flushed(m.uid, number, m.decided)),),
            lambda seen=number: agent.number > seen or agent.installed is not None,  # type: ignore[misc]
            "flush",
            m.limits.pause_s,
        )
        if agent.number > number and agent.plan is plan:
            agent.plan = None


def catch_up(m: Member) -> Life[None]:
    """A member that was overtaken is given shared state by the plan, as a newcomer is. Raises `Overtaken` where it has
    to be given it again."""
    m.closing, m.flushed_total = None, None
    plan = m.agent.plan
    begun = plan is not None and plan.number == m.agent.number and (yield from _begin(m, plan))
    if plan is not None and begun and (yield from change.close_at(m, plan)):
        return
    yield from change.change(m)


def _begin(m: Member, plan: say.Plan) -> Life[bool]:
    """Take what a plan gives this newcomer. Returns False where a newer number came."""
    agent, number = m.agent, plan.number
    mine = [one for one in plan.transfers if one.to == m.uid and one.sender != STORAGE]
    wanted = {(number, one.what, one.attempt, one.virtual_worker) for one in mine}
    if m.uid in plan.witness:
        wanted.add((number, "digest", plan.closed_at, -1))
    agent.doing = ("flush", plan.closed_at, -1)
    in_time = yield from m.wait(
        (), lambda: agent.number > number or wanted <= agent.given.keys(), "flush", m.limits.flush_s
    )
    if agent.number > number or not in_time:
        return False
    m.replica = m.program.replica(())
    m.ledger = m.new_ledger(known=True)
    shared = agent.given.get((number, "shared", plan.closed_at, -1))
    if shared is not None:
        if shared.payload is None:
            raise ProtocolError(f"shared state was promised and refused: {shared.reason}")
        take_shared(m, shared.payload)
    elif plan.closed_at:
        load_shared(m, m.durable.shared(plan.closed_at))
    if m.decided != plan.closed_at:
        raise ProtocolError(f"shared state of attempt {m.decided} was given for a view of {plan.closed_at}")
    witness = agent.given.get((number, "digest", plan.closed_at, -1))
    if witness is not None and witness.payload != change.digest_of(m).encode():
        raise ProtocolError(
            f"shared state as it was given differs from that of worker {plan.witness[m.uid]}: one of them is damaged"
        )
    m.incoming.clear()
    change.take_in(m, [agent.given[one] for one in sorted(wanted) if one[1] not in ("shared", "digest")])
    for k, packed in m.incoming.items():
        m.keeper.offer(k, m.uid, m.unpacked_owned(k, packed))
    return True


def load_shared(m: Member, packed: bytes) -> None:
    """Shared state as it was packed; nothing is known of what was sent before."""
    m.replica.load_shared(*serialize.unpack(packed))
    m.ledger = m.new_ledger(known=False)


def take_shared(m: Member, payload: bytes) -> None:
    """A snapshot and the log that leads on from it; this node's keeper learns both, so that replays can start here."""
    first, fields, ledger, *entries = unbundle(payload)
    load_shared(m, first)
    tag = m.decided
    log = [Entry.unpack(one) for one in entries]
    m.keeper.learn(tag, first, log)
    advance(m.replica, log)
    m.followed += [one.attempt for one in log]
    m.take_fields(fields)
    settings, layout = m.replica.settings, m.replica.layout
    m.ledger = Ledger.unpack(settings, layout, ledger) if ledger else m.new_ledger(known=False)
    m.keeper.note(m.decided, json.loads(fields))
    m.newest = log[-1] if log else None
