"""All-gather: every payload reaches every worker. The two shapes nearly all of the protocol is made of."""

from __future__ import annotations

from collections.abc import Mapping

from elastic_dgc.exchange.ask import Ask, Key, Kind, Payload, Steps, parcels
from elastic_dgc.exchange.members import Members


def gather_virtual(
    members: Members,
    kind: Kind,
    attempt: int,
    own: Mapping[int, Payload],
    *,
    phase: str,
    deadline_s: float,
    sent_point: str | None = None,
) -> Steps[list[Payload]]:
    """One payload per virtual worker reaches everyone. `own` holds those of the virtual workers hosted here.

    Must be entered by every worker of the view, spares too. Returns the K payloads in virtual-worker order; own ones
    are not sent to oneself and not copied.
    """
    send = tuple(p for k in sorted(own) for p in parcels(members.others, Key(kind, attempt, k), own[k]))
    keys = [Key(kind, attempt, k) for k in range(members.virtual_workers)]
    want = {key: host for key, host in zip(keys, members.hosts, strict=True) if host != members.rank}
    got = yield Ask(send, want, phase, deadline_s, sent_point)
    return [got[key] if key in want else own[key.virtual_worker] for key in keys]


def gather_workers(
    members: Members, kind: Kind, attempt: int, own: Payload, *, phase: str, deadline_s: float, part: int = 0
) -> Steps[list[Payload]]:
    """One payload per worker reaches everyone. Returns them by rank. In its key the virtual worker is -1 - rank."""
    keys = [Key(kind, attempt, -1 - rank, part) for rank in range(members.size)]
    send = parcels(members.others, keys[members.rank], own)
    got = yield Ask(send, {keys[other]: other for other in members.others}, phase, deadline_s)
    return [own if rank == members.rank else got[keys[rank]] for rank in range(members.size)]
