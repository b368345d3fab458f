"""A change of view, from the worker's side: report, flush, acknowledge, take over the new view.

Whoever is behind by an attempt is given what was decided, finishes that attempt by itself, and acknowledges then. A
further loss before the view is installed begins it all again, with a higher number; nothing here is done twice by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from elastic_dgc.errors import ProtocolError
from elastic_dgc.exchange.ask import Key, Kind
from elastic_dgc.membership import control as say
from elastic_dgc.membership.roster import View
from elastic_dgc.precision.digest import combine, digests
from elastic_dgc.protocol import adopt
from elastic_dgc.protocol.letters import Given, Probe
from elastic_dgc.protocol.wait import COORDINATOR, Life, Out, Overtaken
from elastic_dgc.step.log import Entry

if TYPE_CHECKING:
    from elastic_dgc.protocol.member import Member


def change(m: Member) -> Life[None]:
    """From a fence to an installed view; or, where this worker is behind, to where it can finish the open attempt by
    what it was given (`m.closing`), after which it calls `close`. Raises `Overtaken`."""
    agent, limits = m.agent, m.limits
    m.closing, m.flushed_total = None, None
    while True:
        number = agent.number

        def newer(seen: int = number) -> bool:
            return agent.number > seen

        if agent.installed is not None and agent.installed.number == number:
            # Announced again after the coordinator came back; or this worker has acknowledged it before.
            if (yield from take_over(m, agent.installed)):
                return
            continue
        fence = agent.fence
        if agent.plan is None and fence is not None and fence.number == number:
            yield from _report(m, fence)
            if newer():
                continue
        yield from m.wait(
            (), lambda: newer() or agent.plan is not None or agent.installed is not None, "flush", limits.flush_s
        )
        plan = agent.plan
        if newer() or plan is None or plan.number != number:
            if not newer() and agent.installed is None:
                yield from _patience(m, number)
            continue
        anew = any(one.what == "shared" and one.to == m.uid for one in plan.transfers)
        if anew or (plan.closed_at < m.decided and not m.replica.owned):
            raise Overtaken
        if not (yield from _receive(m, plan, ("entry", "row", "message"))):
            continue
        if plan.closed_at > m.decided:
            m.closing = plan
            return
        if plan.closed_at < m.decided:
            raise ProtocolError(f"view {number} is to begin at attempt {plan.closed_at}, {m.decided} are decided here")
        if (yield from close_at(m, plan)):
            return


def close(m: Member) -> Life[None]:
    """The open attempt was finished by what the flush gave: acknowledge, and follow to the installed view."""
    plan, m.closing, m.flushed_total = m.closing, None, None
    assert plan is not None
    if m.agent.number == plan.number and (yield from close_at(m, plan)):
        return
    yield from change(m)


def _patience(m: Member, number: int) -> Life[None]:
    """Nothing came in time. A coordinator that is away may come back; for so long, and no longer."""
    agent = m.agent
    in_time = yield from m.wait(
        (),
        lambda: agent.number > number or agent.plan is not None or agent.installed is not None,
        "flush",
        m.limits.pause_s,
    )
    if not in_time:
        raise m.agent.end("alone", f"no coordinator finished the change to view {number}")


def _report(m: Member, fence: say.Fence) -> Life[None]:
    """Find out who can be reached, and say what is held here."""
    agent, number = m.agent, fence.number
    others = [one.uid for one in fence.survivors if one.uid != m.uid]
    agent.doing = ("reach", m.decided, -1)
    yield from m.wait(
        tuple(Out(uid, Probe(number)) for uid in others),
        lambda: agent.number > number or agent.reached.issuperset(others),
        "reach",
        m.limits.reach_s,
    )
    if agent.number > number:
        return
    m.fault("report", m.decided)
    post, hosted = agent.post, frozenset(m.replica.owned)
    report = say.Report(
        m.uid, number, m.decided, post.held(Kind.ROW, m.decided), post.held(Kind.MESSAGE, m.decided),
        frozenset(agent.reached), hosted, m.stage,
    )  # fmt: skip
    agent.doing = ("flush", m.decided, -1)
    yield from m.wait((Out(COORDINATOR, report),), lambda: True, "flush", m.limits.flush_s)


def _receive(m: Member, plan: say.Plan, kinds: Sequence[str]) -> Life[bool]:
    """Send and receive what a plan moves, of these kinds. Returns False where a newer number came."""
    agent, number = m.agent, plan.number
    outs = [Out(one.to, _given(m, plan, one)) for one in plan.transfers if one.sender == m.uid and one.what in kinds]
    if "shared" in kinds:
        digest = digest_of(m).encode()
        outs += [
            Out(to, Given(number, "digest", plan.closed_at, -1, digest))
            for to, witness in plan.witness.items()
            if witness == m.uid
        ]
    mine = [one for one in plan.transfers if one.to == m.uid and one.what in kinds]
    wanted = {(number, one.what, one.attempt, one.virtual_worker) for one in mine}
    in_time = yield from m.wait(
        tuple(outs), lambda: agent.number > number or wanted <= agent.given.keys(), "flush", m.limits.flush_s,
        sent_point="flush",
    )  # fmt: skip
    if agent.number > number:
        return False
    if not in_time:
        yield from _patience(m, number)
        return False
    take_in(m, [agent.given[one] for one in sorted(wanted)])
    return True


def _given(m: Member, plan: say.Plan, one: say.Transfer) -> Given:
    """What this worker gives another by a plan."""
    key = Key(Kind.ROW if one.what == "row" else Kind.MESSAGE, one.attempt, one.virtual_worker)
    payload: bytes | None
    if one.what == "entry":
        fits = m.newest is not None and m.newest.attempt == one.attempt
        payload = m.newest.pack() if fits and m.newest is not None else None
    elif one.what == "shared":
        payload = m.given_shared()
    elif one.what == "owned":
        payload = m.packed_owned(one.virtual_worker)
    else:
        found = m.agent.post.get(key)
        payload = None if found is None else bytes(found)
    reason = "" if payload is not None else f"{m.uid} does not hold it"
    return Given(plan.number, one.what, one.attempt, one.virtual_worker, payload, reason)


def take_in(m: Member, letters: Iterable[Given]) -> None:
    """What a flush brought, to where the open attempt looks for it. Raises `ProtocolError` on what was refused."""
    post = m.agent.post
    for one in letters:
        if one.payload is None:
            raise ProtocolError(f"{one.what} of attempt {one.attempt} was promised and refused: {one.reason}")
        if one.what == "entry":
            entry = Entry.unpack(one.payload)
            m.flushed_total = entry.total
            for k, row in enumerate(entry.rows):
                post.put(Key(Kind.ROW, entry.attempt, k), row)
            for k, message in enumerate(entry.messages or ()):
                post.put(Key(Kind.MESSAGE, entry.attempt, k), message)
        elif one.what in ("row", "message"):
            kind = Kind.ROW if one.what == "row" else Kind.MESSAGE
            post.put(Key(kind, one.attempt, one.virtual_worker), one.payload)
        elif one.what == "owned":
            m.incoming[one.virtual_worker] = one.payload


def close_at(m: Member, plan: say.Plan) -> Life[bool]:
    """At `closed_at`: hand over what moves, acknowledge, wait for the view. Returns False where it begins again."""
    agent, number = m.agent, plan.number
    m.incoming.clear()
    if not (yield from _receive(m, plan, ("shared", "owned"))):
        return False
    m.fault("acknowledge", m.decided)
    for k, packed in m.incoming.items():
        m.keeper.offer(k, m.uid, m.unpacked_owned(k, packed))
    in_time = yield from m.wait(
        (Out(COORDINATOR, say.Flushed(m.uid, number, m.decided)),),
        lambda: agent.number > number or (agent.installed is not None and agent.installed.number == number),
        "flush",
        m.limits.flush_s,
    )
    if agent.number > number:
        return False
    if not in_time:
        yield from _patience(m, number)
        return False
    assert agent.installed is not None
    return (yield from take_over(m, agent.installed))


def take_over(m: Member, view: View) -> Life[bool]:
    """The view is persisted: it counts. Returns False where the next change has begun before all is in place."""
    if m.uid not in view.uids:
        raise m.agent.end("out", f"view {view.number} is without this worker")
    m.agent.install(view)
    m.installed(view)
    m.fault("install", m.decided)
    return (yield from adopt.adopt(m, view))


def digest_of(m: Member) -> str:
    """The digest of shared state: what a newcomer compares with what it was given. Without what boundaries change,
    where one may be further than another."""
    tensors, values = m.replica.export_shared()
    counted = {name: value for name, value in values.items() if name not in m.boundary_fields()}
    return combine({**digests(tensors), "counters": repr(sorted(counted.items()))})
