"""Of a stale copy only that is taken which nobody can have applied."""

from __future__ import annotations

import pytest
import torch
from simulation import Group, settings

from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.compression.message import unpack
from elastic_dgc.keeping.sent import SentSince
from elastic_dgc.step.log import Entry
from elastic_dgc.step.repair import Surroundings
from elastic_dgc.step.stale import stale


def test_what_was_sent_since_the_copy_is_zero_and_the_rest_is_the_copy() -> None:
    """With the bitmap filled from messages, as a worker fills it. What is left was pending all the time: it is in the
    lost v too, where nothing but later gradients was added to it."""

    class Watching(Surroundings):
        keeps_log = True

        def enter(self, entry: Entry) -> None:
            assert entry.messages is not None
            sent.add(unpack(layout, entry.messages[2]).positions)

    group = Group(2, settings(4, compression=CompressionConfig(density=0.02, warmup=(), min_numel=20))).run(2)
    layout = group.replicas[0].layout
    sent = SentSince(layout.numel)
    group.members[0] = Watching(group.members[0])
    one = next(each.owned[2] for each in group.replicas if 2 in each.owned)
    u, v = one.u.clone(), one.v.clone()
    group.run(3)
    mask, before = sent.mask(), (u.clone(), v.clone())
    assert layout.dense_numel < int(mask.sum()) < layout.numel / 2
    stale(u, v, mask)
    assert not u[mask].any()
    assert not v[mask].any()
    assert torch.equal(u[~mask], before[0][~mask])
    assert torch.equal(v[~mask], before[1][~mask])
    zero_now = (one.v == 0) & ~mask
    assert not v[zero_now].any()  # whatever was sent, down to zero, is in the bitmap
    stale(None, v, torch.ones_like(mask))
    assert not v.any()


def test_a_mask_of_something_else_is_refused() -> None:
    v = torch.ones(4)
    for mask in (torch.ones(3, dtype=torch.bool), torch.ones(4)):
        with pytest.raises(ValueError, match="mask: "):
            stale(None, v, mask)
    assert v.all()
