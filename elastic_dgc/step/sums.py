"""The sum over all virtual workers, in their order, in fp32: what every worker gets, and what stays in v.

Both ways read `other_v` of the hosted virtual workers and leave there what was not sent; nothing current is touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from elastic_dgc.compression import values as wire
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import Message, unpack
from elastic_dgc.errors import CompressionOff, MessageError
from elastic_dgc.exchange.ask import Ask, Key, Kind, Parcel, Payload, Steps
from elastic_dgc.exchange.gather import gather_virtual
from elastic_dgc.exchange.members import Members
from elastic_dgc.step.plan import Plan
from elastic_dgc.step.repair import SumKnown
from elastic_dgc.step.state import OwnedState
from elastic_dgc.step.total import Total


def gather_messages(
    members: Members, plan: Plan, attempt: int, packed: Mapping[int, bytes], deadline_s: float
) -> Steps[list[Payload]]:
    """All K packed messages reach everyone."""
    return gather_virtual(
        members, Kind.MESSAGE, attempt, packed, phase="exchange", deadline_s=deadline_s, sent_point="exchange",
        bytes_each=plan.promised_bytes,
    )  # fmt: skip


def decode_all(
    layout: Layout, plan: Plan, attempt: int, messages: Sequence[Payload], require: bool = False
) -> list[Message]:
    """What all K messages say. With `require`, raises `CompressionOff` on everyone alike where a message is over twice
    what was promised."""
    if require:
        for k, message in enumerate(messages):
            if len(message) > 2 * plan.promised_bytes:
                raise CompressionOff(
                    f"virtual worker {k} packed {len(message)} bytes at attempt {attempt}, over twice the "
                    f"{plan.promised_bytes} that density {plan.density:g} and {plan.values} values promise"
                )
    return [unpack_of(layout, k, message) for k, message in enumerate(messages)]


def unpack_of(layout: Layout, virtual_worker: int, message: Payload) -> Message:
    """A virtual worker's message. Raises `MessageError` that names it."""
    try:
        return unpack(layout, message)
    except MessageError as error:  # on everyone alike: all have the same bytes
        raise MessageError(f"message of virtual worker {virtual_worker}: {error}") from None


def dense_sum(
    members: Members,
    layout: Layout,
    plan: Plan,
    attempt: int,
    owned: Mapping[int, OwnedState],
    deadline_s: float,
    total: Total,
) -> Steps[int]:
    """Owner-computes: the index space is cut into K slices, virtual worker i's host adds up slice i and hands the sum
    back. With N = K these are a ring all-reduce's bytes; the order of addition does not depend on N.

    Returns the bytes a virtual worker sends whole, times K; the sum is in `total`. The rounding of the way there
    stays in each v, the rounding of the way back in the v of the slice's owner, so nothing is lost.
    """
    k_all, kind = members.virtual_workers, plan.values
    bounds = [layout.numel * i // k_all for i in range(k_all + 1)]
    spans = [slice(low, high) for low, high in itertools.pairwise(bounds)]
    sent = {k: wire.encode(one.other_v, kind).data for k, one in owned.items()}
    cpu = {k: value.to("cpu") for k, value in sent.items()}
    send = tuple(
        Parcel(host, Key(Kind.SLICE, attempt, k, i), _bytes_of(cpu[k][spans[i]]))
        for k in sorted(owned)
        for i, host in enumerate(members.hosts)
        if host != members.rank
    )
    want = {
        Key(Kind.SLICE, attempt, k, i): host
        for k, host in enumerate(members.hosts)
        if host != members.rank
        for i in sorted(owned)
    }
    sizes = [wire.size(kind, span.stop - span.start) for span in spans]
    by_library = members.collectives
    known = {key: sizes[key.part] for key in want} if by_library else None
    sums: dict[int, Tensor] = {}
    rounding: dict[int, Tensor] = {}
    try:
        got = yield Ask(send, want, "exchange", deadline_s, "exchange", known)
        for i in sorted(owned):
            width = spans[i].stop - spans[i].start
            added = torch.zeros(width)
            for k in range(k_all):
                key = Key(Kind.SLICE, attempt, k, i)
                added += wire.from_bytes(got[key], kind, width).data if key in got else cpu[k][spans[i]]
            sums[i] = wire.encode(added, kind).data
            rounding[i] = added - sums[i].float()
        own = {i: _bytes_of(value) for i, value in sums.items()}
        parts = yield from gather_virtual(
            members, Kind.SUM, attempt, own, phase="exchange", deadline_s=deadline_s, sent_point="sum",
            bytes_each=wire.size(kind, layout.numel) / k_all, sizes=sizes if by_library else None,
        )  # fmt: skip
        widths = [span.stop - span.start for span in spans]
        slices = [wire.from_bytes(part, kind, width).data for part, width in zip(parts, widths, strict=True)]
        whole = torch.cat(slices).float()
    except SumKnown as decided:  # by others, who had the sums of the slices hosted here too: their rounding is known
        whole = wire.from_bytes(decided.total, "fp32", layout.numel).data.clone()
    # Only now may other_v change: it is what the transport was still reading from.
    for k, one in owned.items():
        clear_whole(one.other_v, sent[k])
        if k in rounding:
            one.other_v[spans[k]] += rounding[k].to(one.other_v.device)
    total.take(whole.to(total.flat.device))
    return k_all * wire.size(kind, layout.numel)


def clear_whole(v: Tensor, sent: Tensor) -> None:
    """Everything was sent: only the rounding stays. Changes v."""
    if sent.dtype == v.dtype:
        v.zero_()
    else:
        v.sub_(sent.float())


def _bytes_of(values: Tensor) -> memoryview:
    """The bytes of a wire tensor on the CPU, without a copy."""
    return values.view(torch.uint8).numpy().data
