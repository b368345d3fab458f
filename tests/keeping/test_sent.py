"""The bitmap of what was sent is the set of what was sent, and damaged ones are found."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from elastic_dgc.errors import MessageError
from elastic_dgc.keeping.sent import SentSince


@given(numel=st.integers(1, 60), data=st.data())
@examples(max_examples=100, deadline=None)
def test_it_is_a_set_of_positions(numel: int, data: st.DataObject) -> None:
    bitmap, model = SentSince(numel), set()
    for _ in range(data.draw(st.integers(0, 6))):
        match data.draw(st.sampled_from(["add", "add", "add", "all", "clear"])):
            case "all":
                bitmap.add_all()
                model = set(range(numel))
            case "clear":
                bitmap.clear()
                model = set()
            case _:
                positions = data.draw(st.lists(st.integers(0, numel - 1), unique=True))
                bitmap.add(torch.tensor(positions, dtype=torch.int64))
                model |= set(positions)
        mask = bitmap.mask()
        assert (mask.dtype, mask.shape) == (torch.bool, (numel,))
        assert set(mask.nonzero().flatten().tolist()) == model
    packed = bitmap.pack()
    assert torch.equal(SentSince.unpack(memoryview(packed)).mask(), bitmap.mask())
    assert len(packed) <= numel / 8 + 1 + 20
    flipped = bytearray(packed)
    flipped[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), packed[:-1], packed + b"x", b""):
        with pytest.raises(MessageError):
            SentSince.unpack(damaged)


def test_positions_outside_change_nothing() -> None:
    bitmap = SentSince(9)
    for outside in ([0, 9], [-1, 3]):
        with pytest.raises(ValueError, match=r"where there are 0\.\.8"):
            bitmap.add(torch.tensor(outside))
    assert not bitmap.mask().any()
    assert bitmap.size_bytes == 2
