"""All-gather: every payload reaches every worker. The two shapes nearly all of the protocol is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Ask, Key, Kind, Payload, Steps, parcels
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.routes import Route
from elastic_dgc.exchange.tree import gather_tree


def gather_virtual(
    members: Members,
    kind: Kind,
    attempt: int,
    own: Mapping[int, Payload],
    *,
    phase: str,
    deadline_s: float,
    sent_point: str | None = None,
    bytes_each: float | None = None,
    sizes: Sequence[int] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Steps[list[Payload]]:
    """One payload per virtual worker reaches everyone. `own` holds those of the virtual workers hosted here.

    Must be entered by every worker of the view, spares too. Returns the K payloads in virtual-worker order; own ones
    are not sent to oneself and not copied. `bytes_each`, the same on everyone, is about how large one is: from it the
    route is chosen; without it everything goes straight. `sizes`: of every virtual worker's payload, exactly, where it
    is to go by collectives. `meanwhile`: work to be done while the others' are on their way.
    """
    if sizes is None and bytes_each is not None and members.route(bytes_each) is Route.TREE:
        all_of_them = yield from gather_tree(
            members.rank, members.places, kind, attempt, own, phase=phase, deadline_s=deadline_s, sent_point=sent_point,
            meanwhile=meanwhile,
        )  # fmt: skip
        if all_of_them.keys() != set(range(members.virtual_workers)):
            odd = min(all_of_them.keys() ^ set(range(members.virtual_workers)))
            raise MessageError(f"{kind.name} of virtual worker {odd}, attempt {attempt}: there is one too many or few")
        return [all_of_them[k] for k in range(members.virtual_workers)]
    send = tuple(p for k in sorted(own) for p in parcels(members.others, Key(kind, attempt, k), own[k]))
    keys = [Key(kind, attempt, k) for k in range(members.virtual_workers)]
    want = {key: host for key, host in zip(keys, members.hosts, strict=True) if host != members.rank}
    known = None if sizes is None else {key: sizes[key.virtual_worker] for key in want}
    got = yield Ask(send, want, phase, deadline_s, sent_point, known, meanwhile)
    return [got[key] if key in want else own[key.virtual_worker] for key in keys]


def gather_workers(
    members: Members, kind: Kind, attempt: int, own: Payload, *, phase: str, deadline_s: float, part: int = 0
) -> Steps[list[Payload]]:
    """One payload per worker reaches everyone. Returns them by rank. In its key the virtual worker is -1 - rank."""
    keys = [Key(kind, attempt, -1 - rank, part) for rank in range(members.size)]
    send = parcels(members.others, keys[members.rank], own)
    got = yield Ask(send, {keys[other]: other for other in members.others}, phase, deadline_s)
    return [own if rank == members.rank else got[keys[rank]] for rank in range(members.size)]
