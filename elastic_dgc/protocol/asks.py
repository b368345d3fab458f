"""The asks of an exchange, answered in whatever view there is: sent to its hosts, and begun again when it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from elastic_dgc.errors import ProtocolError
from elastic_dgc.exchange.ask import Ask, Key, Payload, Steps
from elastic_dgc.exchange.mailbox import describe
from elastic_dgc.protocol import change
from elastic_dgc.protocol.letters import Frame
from elastic_dgc.protocol.post import LASTING
from elastic_dgc.protocol.wait import Life, Out, Over
from elastic_dgc.step.repair import Rearranged, SumKnown

if TYPE_CHECKING:
    from elastic_dgc.protocol.member import Member

T = TypeVar("T")
PATIENCE = 3  # deadlines of a phase that may pass, each of them reported, before a worker gives up


def drive(m: Member, steps: Steps[T], again: Callable[[], Life[None]] | None) -> Life[T]:
    """Run steps of an exchange in whatever view there is. `again` is done before they go on in another one."""
    try:
        ask = next(steps)
        while True:
            try:
                got = yield from _answer(m, ask)
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


def _answer(m: Member, ask: Ask) -> Life[Mapping[Key, Payload]]:
    """Send and collect. Raises `Rearranged` where another view was installed meanwhile, `SumKnown` where a flush
    brought the sum."""
    post = m.agent.post
    if m.closing is not None:
        return _from_flush(m, ask)
    uids, number = m.view.uids, m.view.number
    m.agent.doing = (ask.phase, m.decided, -1)
    outs = tuple(Out(uids[one.to], Frame(number, one.key, one.payload)) for one in ask.send)
    for one in ask.send:
        if one.key.kind in LASTING:
            post.put(one.key, bytes(one.payload))
    phase, deadline_s = ask.phase, m.limits.of_phase(ask.phase)
    in_time = yield from m.wait(
        outs, lambda: post.has(ask.want) or m.agent.changing, phase, deadline_s, ask.meanwhile, ask.sent_point
    )
    for _ in range(PATIENCE):
        if post.has(ask.want):
            return {key: _payload(m, key) for key in ask.want}
        if m.agent.changing:
            yield from change.change(m)
            if m.closing is not None:
                return _from_flush(m, ask)
            raise Rearranged
        if not in_time:
            missing = {uids[rank]: key for key, rank in ask.want.items() if post.get(key) is None}
            why = f"the limit of {deadline_s:g} s passed in phase '{phase}', {{}} is missing"
            outs = tuple(o for uid, key in missing.items() for o in m.agent.suspect(uid, why.format(describe(key))))
            in_time = yield from m.wait(outs, lambda: post.has(ask.want) or m.agent.changing, phase, deadline_s)
    raise Over("alone", f"the limit of {deadline_s:g} s passed {PATIENCE} times in phase '{phase}'")


def _payload(m: Member, key: Key) -> Payload:
    payload = m.agent.post.get(key)
    assert payload is not None
    return payload


def _from_flush(m: Member, ask: Ask) -> Mapping[Key, Payload]:
    """What the flush brought is all there is: nothing is sent any more in the old view."""
    post = m.agent.post
    total = m.flushed_total
    if total is not None and ask.phase == "exchange":  # before anything else: to make it might take an orphan's state
        raise SumKnown(total)
    if post.has(ask.want):
        return {key: _payload(m, key) for key in ask.want}
    missing = next(key for key in ask.want if post.get(key) is None)
    raise ProtocolError(f"the flush to {m.closing} did not bring {describe(missing)}")
