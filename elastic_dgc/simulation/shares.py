"""What an attempt adds to a virtual worker's residual, measured in its memory while both copies are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elastic_dgc.exchange.ask import Key, Kind
from elastic_dgc.step.plan import plan
from elastic_dgc.step.state import OwnedState
from elastic_dgc.step.sums import unpack_of

if TYPE_CHECKING:
    from elastic_dgc.protocol.member import Member


@dataclass(frozen=True)
class Share:
    """Of one attempt and virtual worker. `added`: fp64[numel], what came into v by it, `v` fp32[numel]: what is left
    when it is applied, `positions`: what of it was sent (None: everything)."""

    added: Tensor
    v: Tensor
    positions: Tensor | None


@torch.no_grad()
def share_of(member: Member, virtual_worker: int, one: OwnedState) -> Share | None:
    """Called when the other copies of u and v are those after the open attempt. None where it has no message yet."""
    replica = member.replica
    planned = plan(replica.settings, replica.layout, replica.counters.applied)
    momentum = one.other_u
    if planned.whole:
        # Nothing is masked, so u' is what was added; without momentum it is not kept apart from v.
        added = momentum.double() if momentum is not None else one.other_v.double() - one.v.double()
        return Share(added, torch.zeros_like(one.v), None)
    packed = member.agent.post.get(Key(Kind.MESSAGE, member.decided, virtual_worker))
    slot = member.keeper.slots.get(virtual_worker)
    if packed is None and slot is not None and slot.message is not None and slot.message[0] == member.decided:
        packed = slot.message[1]
    if packed is None:
        return None
    message = unpack_of(replica.layout, virtual_worker, packed)
    sent = torch.zeros_like(one.v, dtype=torch.float64)
    sent[message.positions] = message.values.double()
    added = one.other_v.double() - one.v.double() + sent
    if momentum is not None:  # where nothing was sent it is there by itself
        kept = torch.ones_like(one.v, dtype=torch.bool)
        kept[message.positions] = False
        added = torch.where(kept, momentum.double(), added)
    return Share(added, one.other_v.clone(), message.positions)
