"""Re-hosting: an orphan's owned state comes to its new host, from the best source there is (DESIGN 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_dgc.errors import DamagedCheckpoint, MessageError, Unreplayable
from elastic_dgc.keeping import serialize
from elastic_dgc.keeping.rolling import Fit
from elastic_dgc.membership import control as say
from elastic_dgc.membership.roster import Source, Tier, View
from elastic_dgc.protocol.bundle import unbundle
from elastic_dgc.protocol.letters import Fetch, copy_of
from elastic_dgc.protocol.packing import load_owned, merge, whole_chunk
from elastic_dgc.protocol.wait import COORDINATOR, Life, Out, keeper_of
from elastic_dgc.step.advance import advance
from elastic_dgc.step.log import Entry
from elastic_dgc.step.replay import Chunk, replay
from elastic_dgc.step.replica import Replica

if TYPE_CHECKING:
    from elastic_dgc.protocol.member import Member


@dataclass(frozen=True)
class Recovered:
    """How an orphan came back. `differences`: logged values that a replay did not come to."""

    tier: Tier
    replayed: int = 0
    differences: int = 0


class _Newer(Exception):
    """The next change of view has begun."""


def adopt(m: Member, view: View) -> Life[bool]:
    """Every virtual worker hosted here has its state at `closed_at`. Returns False where the next change has begun."""
    m.replica.settle()
    try:
        for k in view.hosted(m.uid):
            if k not in m.replica.owned:
                yield from _adopt(m, view, k)
    except _Newer:
        return False
    return m.agent.number == view.number


def _adopt(m: Member, view: View, k: int) -> Life[None]:
    agent, tried = m.agent, list[str]()
    agent.doing = ("rehost", m.decided, k)
    m.fault("rehost", m.decided)
    sources = view.sources.get(k, ())
    exact = [one for one in sources if one.tier.exact]
    for source in exact:
        found = yield from _try(m, view, k, source, tried)
        if found is not None:
            yield from _here(m, view, k, found, tried)
            return
    if not m.fast and (yield from _wait_for_exact(m, view, k, exact, tried)):
        return
    for source in [one for one in sources if not one.tier.exact] + [Source(Tier.ZERO)]:
        found = yield from _try(m, view, k, source, tried)
        if found is not None:
            yield from _here(m, view, k, found, tried)
            return


def _wait_for_exact(m: Member, view: View, k: int, exact: Sequence[Source], tried: list[str]) -> Life[bool]:
    """The coordinator says when an inexact copy may be taken; until then the exact ones are asked for again and again,
    for links are mended, too. Returns whether one came."""
    agent, limits, waited_s = m.agent, m.limits, 0.0
    stuck = agent.unanswered["stuck"] = Out(COORDINATOR, say.Stuck(m.uid, view.number, k, tuple(tried)))
    outs: tuple[Out, ...] = (stuck,)
    try:
        while waited_s < limits.exact_wait_s + limits.rehost_s:
            allowed = yield from m.wait(
                outs,
                lambda: agent.number > view.number or (view.number, k) in agent.inexact_allowed,
                "rehost",
                limits.silent_s,
            )
            if agent.number > view.number:
                raise _Newer
            again: list[str] = []
            for source in exact:
                found = yield from _try(m, view, k, source, again)
                if found is not None:
                    yield from _here(m, view, k, found, tried)
                    return True
            tried[:] = dict.fromkeys((*tried, *again))
            if allowed:
                break
            outs, waited_s = (), waited_s + limits.silent_s
    finally:
        del agent.unanswered["stuck"]
    return False


def _here(m: Member, view: View, k: int, found: Recovered, tried: list[str]) -> Life[None]:
    m.recovered.append((k, found))
    hosted = say.Hosted(
        m.uid, view.number, k, int(found.tier), tuple(tried), m.lost_mass(k, found.tier), found.replayed
    )
    yield from m.wait((Out(COORDINATOR, hosted),), lambda: True, "rehost", 1.0)


def _try(m: Member, view: View, k: int, source: Source, tried: list[str]) -> Life[Recovered | None]:
    """This source, or None with its fault among `tried`."""
    try:
        match source.tier:
            case Tier.INITIAL | Tier.ZERO:
                alone = m.program.replica([k])  # with the buffers of the beginning: the model's have been used here
                alone.owned[k].tag = m.decided
                _move(m, k, alone)
                return Recovered(source.tier)
            case Tier.KEEPER:
                packed = yield from _fetch(m, view, k, source.node, False, tried)
                return _from_state(m, k, packed, Tier.KEEPER)
            case Tier.CHECKPOINT:
                return _from_state(m, k, m.durable.owned(source.tag, k), Tier.CHECKPOINT)
            case Tier.BUDDY:
                packed = yield from _fetch(m, view, k, source.node, True, tried)
                return _from_fit(m, k, packed)
            case Tier.STALE:
                return (yield from _stale(m, view, k, source, tried))
    except (MessageError, DamagedCheckpoint, Unreplayable) as error:
        tried.append(f"{source.tier.name.lower()} at {source.node or 'storage'}: {error}")
    return None


def _fetch(m: Member, view: View, k: int, node: str, rolling: bool, tried: list[str]) -> Life[bytes]:
    """A copy from a node's keeper; what it passed over goes to `tried`. Raises `MessageError` where it has none or does
    not answer."""
    agent, key = m.agent, (view.number, copy_of(node, rolling), view.closed_at, k)
    agent.given.pop(key, None)
    in_time = yield from m.wait(
        (Out(keeper_of(node), Fetch(view.number, k, view.closed_at, rolling)),),
        lambda: agent.number > view.number or key in agent.given,
        "rehost",
        m.limits.confirm_s,
    )
    if agent.number > view.number:
        raise _Newer
    if not in_time:
        raise MessageError(f"the keeper of {node} does not answer")
    given = agent.given.pop(key)
    if given.payload is None:
        raise MessageError(given.reason)
    if given.reason:
        tried.append(given.reason)
    return given.payload


def _from_state(m: Member, k: int, packed: bytes, tier: Tier) -> Recovered:
    """A whole copy: at this attempt, or replayed to it."""
    alone = m.program.replica([k])
    tag = load_owned(alone.owned[k], packed)
    if tag > m.decided:
        raise MessageError(f"the copy of virtual worker {k} has tag {tag}, above {m.decided} where the view was closed")
    if tag < m.decided:
        return _replayed(m, k, alone, tag, [whole_chunk(alone.owned[k])], tier)
    _move(m, k, alone)
    return Recovered(tier)


def _from_fit(m: Member, k: int, packed: bytes) -> Recovered:
    """A buddy's rolling snapshot, replayed."""
    fit = Fit.of(unbundle(packed), m.keeper.run)
    alone = m.program.replica([k])
    for name, value in fit.buffers.items():
        alone.owned[k].buffers[name].copy_(value)
    return _replayed(m, k, alone, fit.start, list(fit.chunks), Tier.BUDDY)


def _replayed(m: Member, k: int, alone: Replica, start: int, chunks: list[Chunk], tier: Tier) -> Recovered:
    parts = m.keeper.shared(m.decided, start)
    if parts is None:
        raise Unreplayable(
            f"virtual worker {k} would have to be replayed from attempt {start}, and the log here begins later"
        )
    first, *entries = parts
    log = [Entry.unpack(one) for one in entries]
    alone.load_shared(*serialize.unpack(first))
    before = start - alone.counters.attempt
    advance(alone, log[:before])
    m.fault("replay", m.decided)
    done = replay(alone, k, m.program.batches, m.program.loss, log[before:], chunks, m.decided)
    _move(m, k, alone)
    return Recovered(tier, m.decided - start, done.differences + done.rows_differ)


def _stale(m: Member, view: View, k: int, source: Source, tried: list[str]) -> Life[Recovered | None]:
    """The newest copy there is, without what was sent since: that was applied, and would be counted twice."""
    alone = m.program.replica([k])
    state = alone.owned[k]
    if source.node:
        packed = yield from _fetch(m, view, k, source.node, source.rolling, tried)
        if source.rolling:
            fit = Fit.of(unbundle(packed), m.keeper.run)
            merge(state, fit)
            tag = min(chunk.tag for chunk in fit.chunks)
        else:
            tag = load_owned(state, packed)
    else:
        tag = source.tag
        load_owned(state, m.durable.owned(tag, k))
    m.without_sent(state, tag)
    state.tag = m.decided
    _move(m, k, alone)
    return Recovered(Tier.STALE)


def _move(m: Member, k: int, alone: Replica) -> None:
    """From the replica that was made for it into this worker's."""
    state = alone.owned[k]
    m.replica.owned[k] = state
    m.keeper.hold(k, m.uid, state)
