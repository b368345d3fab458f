"""The sum over all virtual workers, in their order, in fp32: what every worker gets, and what stays in v.

Both ways read `other_v` of the hosted virtual workers and leave there what was not sent; nothing current is touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from elastic_dgc.compression import values as wire
from elastic_dgc.compression.dgc import add_message, clear, mask, select
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import pack, unpack
from elastic_dgc.errors import CompressionOff
from elastic_dgc.exchange.ask import Ask, Key, Kind, Parcel, Steps
from elastic_dgc.exchange.gather import gather_virtual
from elastic_dgc.exchange.members import Members
from elastic_dgc.step.plan import Plan
from elastic_dgc.step.state import OwnedState


def compress(layout: Layout, plan: Plan, owned: OwnedState, masking: bool) -> bytes:
    """Select, encode, clear and mask one virtual worker's other copies; returns its packed message."""
    v = owned.other_v
    positions = select(layout, v, plan.density)
    dense_positions = layout.dense_positions.to(v.device)
    sparse = wire.encode(v[positions], plan.values)
    dense = wire.encode(v[dense_positions], plan.values)
    clear(v, positions, sparse)
    clear(v, dense_positions, dense)
    if masking:
        mask(owned.other_u, positions)
    return pack(layout, plan.values, dense, positions, sparse)


def sparse_sum(
    members: Members,
    layout: Layout,
    plan: Plan,
    attempt: int,
    packed: Mapping[int, bytes],
    deadline_s: float,
    device: torch.device,
    require: bool,
) -> Steps[tuple[Tensor, int]]:
    """All K messages reach everyone and are added one after the other. Returns (sum [numel], packed bytes of all K).

    With `require`, raises `CompressionOff` on everyone alike where a message is over twice what was promised.
    """
    messages = yield from gather_virtual(
        members, Kind.MESSAGE, attempt, packed, phase="exchange", deadline_s=deadline_s, sent_point="exchange"
    )
    if require:
        for k, message in enumerate(messages):
            if len(message) > 2 * plan.promised_bytes:
                raise CompressionOff(
                    f"virtual worker {k} packed {len(message)} bytes at attempt {attempt}, over twice the "
                    f"{plan.promised_bytes} that density {plan.density:g} and {plan.values} values promise"
                )
    total = torch.zeros(layout.numel, device=device)
    for message in messages:
        said = unpack(layout, message)
        add_message(total, said.positions.to(device), said.values.to(device))
    return total, sum(len(message) for message in messages)


def dense_sum(
    members: Members, layout: Layout, plan: Plan, attempt: int, owned: Mapping[int, OwnedState], deadline_s: float
) -> Steps[tuple[Tensor, int]]:
    """Owner-computes: the index space is cut into K slices, virtual worker i's host adds up slice i and hands the sum
    back. With N = K these are a ring all-reduce's bytes; the order of addition does not depend on N.

    Returns (sum [numel], bytes a virtual worker sends whole, times K). The rounding of the way there stays in each
    v, the rounding of the way back in the v of the slice's owner, so nothing is lost.
    """
    k_all, kind = members.virtual_workers, plan.values
    bounds = [layout.numel * i // k_all for i in range(k_all + 1)]
    spans = [slice(low, high) for low, high in itertools.pairwise(bounds)]
    sent = {k: wire.encode(one.other_v, kind) for k, one in owned.items()}
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
    got = yield Ask(send, want, "exchange", deadline_s, "exchange")
    sums: dict[int, Tensor] = {}
    rounding: dict[int, Tensor] = {}
    for i in sorted(owned):
        total = torch.zeros(spans[i].stop - spans[i].start)
        for k in range(k_all):
            key = Key(Kind.SLICE, attempt, k, i)
            total += (wire.from_bytes(memoryview(got[key]), kind) if key in got else cpu[k][spans[i]]).float()
        sums[i] = wire.encode(total, kind)
        rounding[i] = total - sums[i].float()
    own = {i: _bytes_of(value) for i, value in sums.items()}
    parts = yield from gather_virtual(members, Kind.SUM, attempt, own, phase="exchange", deadline_s=deadline_s)
    # Only now may other_v change: it is what the transport was still reading from.
    for k, one in owned.items():
        clear_whole(one.other_v, sent[k])
        one.other_v[spans[k]] += rounding[k].to(one.other_v.device)
    result = torch.cat([wire.from_bytes(memoryview(part), kind) for part in parts]).float()
    return result, k_all * layout.numel * wire.BYTES[kind]


def clear_whole(v: Tensor, sent: Tensor) -> None:
    """Everything was sent: only the rounding stays. Changes v."""
    if sent.dtype == v.dtype:
        v.zero_()
    else:
        v.sub_(sent.float())


def _bytes_of(values: Tensor) -> memoryview:
    """The bytes of a wire tensor on the CPU, without a copy."""
    return values.view(torch.uint8).numpy().data
