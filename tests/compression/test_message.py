"""The message: what is packed is unpacked, sizes are as promised, damage is an error and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_dgc.compression import positions as coded
from elastic_dgc.compression import values as wire
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import pack, promised_bytes, unpack
from elastic_dgc.errors import MessageError

LAYOUT = Layout.of({"a": torch.zeros(40, 30), "b": torch.zeros(7), "c": torch.zeros(5, 5, 4)}.items(), 50)


@given(st.sets(st.integers(0, 9999), max_size=300), st.integers(10_000, 5_000_000))
def test_positions_roundtrip(chosen: set[int], numel: int) -> None:
    positions = np.array(sorted(chosen), dtype=np.int64)
    data = coded.encode(positions, numel)
    assert len(data) == sum(coded.sizes(numel, len(positions)))
    assert coded.decode(memoryview(data), numel, len(positions)).tolist() == positions.tolist()


def test_positions_take_about_twelve_bits_at_a_thousandth() -> None:
    positions = np.sort(np.random.default_rng(0).choice(1_000_000, 1000, replace=False)).astype(np.int64)
    assert len(coded.encode(positions, 1_000_000)) * 8 / 1000 < 12.1


def message(kind: wire.Values, density: float = 0.05) -> tuple[bytes, torch.Tensor, torch.Tensor]:
    v = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(0, 1200, 37)
    sparse, dense = wire.encode(v[positions], kind), wire.encode(v[LAYOUT.dense_positions], kind)
    expected = torch.zeros(LAYOUT.numel)
    expected[positions], expected[LAYOUT.dense_positions] = sparse.float(), dense.float()
    return pack(LAYOUT, kind, dense, positions, sparse), positions, expected


@pytest.mark.parametrize("kind", ["fp32", "bf16", "fp16"])
def test_what_is_packed_is_unpacked(kind: wire.Values) -> None:
    data, _, expected = message(kind)
    said = unpack(LAYOUT, data)
    got = torch.zeros(LAYOUT.numel)
    got[said.positions] = said.values.float()
    assert torch.equal(got, expected)


def test_a_promise_is_kept_to_the_byte_where_all_entries_are_used() -> None:
    v = torch.randn(LAYOUT.numel)
    from elastic_dgc.compression.dgc import select

    positions = select(LAYOUT, v, 0.05)
    data = pack(LAYOUT, "fp32", v[LAYOUT.dense_positions], positions, v[positions])
    assert len(data) == promised_bytes(LAYOUT, 0.05, "fp32")


def test_values_on_the_wire_are_finite_whatever_was_accumulated() -> None:
    large = torch.tensor([7e4, -1e30, 3.4e38, 1.0])
    for kind in ("fp16", "bf16", "fp32"):
        assert torch.isfinite(wire.encode(large, kind).float()).all()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_is_an_error_and_nothing_else(data: st.DataObject) -> None:
    good = message("bf16")[0]
    broken = bytearray(good)
    if data.draw(st.booleans()):
        broken = broken[: data.draw(st.integers(0, len(good) - 1))]
    else:
        at = data.draw(st.integers(0, len(good) - 1))
        broken[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(MessageError):
        unpack(LAYOUT, bytes(broken))


@given(st.binary(max_size=200))
def test_strangers_bytes_are_an_error_and_nothing_else(junk: bytes) -> None:
    with pytest.raises(MessageError):
        unpack(LAYOUT, junk)
