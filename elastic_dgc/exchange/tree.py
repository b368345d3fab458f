"""All-gather over one worker of each node: see `routes` for why, and for what `Topology` is."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Ask, Key, Kind, Parcel, Payload, Steps
from elastic_dgc.exchange.routes import Topology

_HEAD = struct.Struct("<I")
_ENTRY = struct.Struct("<iQ")
UP, DOWN, ROUND = 1, 2, 3  # parts of the keys; rounds count up from ROUND


def pack_bundle(payloads: Mapping[int, Payload]) -> bytes:
    """Payloads by number in one: count, then (number, length) of each, then their bytes."""
    heads = [_ENTRY.pack(number, len(payload)) for number, payload in sorted(payloads.items())]
    return b"".join([_HEAD.pack(len(payloads)), *heads, *(bytes(one) for _, one in sorted(payloads.items()))])


def unpack_bundle(data: Payload) -> dict[int, Payload]:
    """The inverse; views, not copies. Raises `MessageError` on anything that `pack_bundle` did not make."""
    view = memoryview(data)
    count = _HEAD.unpack_from(view)[0] if len(view) >= _HEAD.size else -1
    start = _HEAD.size + count * _ENTRY.size
    if count < 0 or start > len(view):
        raise MessageError(f"a bundle of {len(view)} bytes is cut off")
    found: dict[int, Payload] = {}
    for index in range(count):
        number, length = _ENTRY.unpack_from(view, _HEAD.size + index * _ENTRY.size)
        if length > len(view) - start or number in found:
            raise MessageError(f"a bundle of {len(view)} bytes is not what it says")
        found[number] = view[start : start + length]
        start += length
    if start != len(view):
        raise MessageError(f"a bundle of {len(view)} bytes has {len(view) - start} too many")
    return found


def gather_tree(
    rank: int,
    topology: Topology,
    kind: Kind,
    attempt: int,
    own: Mapping[int, Payload],
    *,
    phase: str,
    deadline_s: float,
    sent_point: str | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Steps[dict[int, Payload]]:
    """Every worker's numbered payloads reach everyone. Must be entered by every worker of the view. Returns them all by
    number. The keys' virtual worker is -1 - the sender's rank."""

    def key(sender: int, part: int) -> Key:
        return Key(kind, attempt, -1 - sender, part)

    leader, followers = topology.leader_of(rank), topology.followers(rank)
    if rank != leader:
        up = (Parcel(leader, key(rank, UP), pack_bundle(own)),)
        got = yield Ask(up, {key(leader, DOWN): leader}, phase, deadline_s, sent_point, None, meanwhile)
        return {**own, **unpack_bundle(got[key(leader, DOWN)])}
    node = dict(own)
    by_follower: dict[int, dict[int, Payload]] = {}
    if followers:
        got = yield Ask((), {key(one, UP): one for one in followers}, phase, deadline_s, sent_point, None, meanwhile)
        sent_point = meanwhile = None
        for one in followers:
            by_follower[one] = unpack_bundle(got[key(one, UP)])
            node |= by_follower[one]
    leaders = topology.leaders
    here, count = leaders.index(rank), len(leaders)
    held = [pack_bundle(node)]  # bundles of leaders here, here - 1, ... as they arrive
    step = 1
    while step < count:
        part = ROUND + step.bit_length() - 1
        to, source = leaders[(here + step) % count], leaders[(here - step) % count]
        some: dict[int, Payload] = dict(enumerate(held[: count - step]))
        send = (Parcel(to, key(rank, part), pack_bundle(some)),)
        got = yield Ask(send, {key(source, part): source}, phase, deadline_s, sent_point, None, meanwhile)
        sent_point = meanwhile = None
        held += [bytes(one) for _, one in sorted(unpack_bundle(got[key(source, part)]).items())]
        step *= 2
    everything = dict(node)
    for bundle in held[1:]:
        everything |= unpack_bundle(bundle)
    down = tuple(
        Parcel(one, key(rank, DOWN), pack_bundle({n: p for n, p in everything.items() if n not in by_follower[one]}))
        for one in followers
    )
    if meanwhile is not None:
        meanwhile()
    if down:
        yield Ask(down, {}, phase, deadline_s)
    return everything
