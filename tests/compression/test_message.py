"""The message: what is packed is unpacked, sizes are as promised, damage is an error and nothing else."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_dgc.compression import dgc
from elastic_dgc.compression import positions as coded
from elastic_dgc.compression import values as wire
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import HEADER, pack, promised_bytes, unpack
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
    positions = LAYOUT.dense_numel + torch.arange(0, 1200, 37)
    everything = torch.cat([LAYOUT.dense_positions, positions])
    values = wire.encode(v[everything], kind)
    expected = torch.zeros(LAYOUT.numel)
    expected[everything] = values.decode()
    return pack(LAYOUT, kind, values, positions), positions, expected


KINDS: list[wire.Values] = ["fp32", "bf16", "fp16", "int8"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_packed_is_unpacked(kind: wire.Values) -> None:
    data, _, expected = message(kind)
    said = unpack(LAYOUT, data)
    got = torch.zeros(LAYOUT.numel)
    got[said.positions] = said.values
    assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("small_density", [1.0, 0.2])
def test_a_promise_is_kept_to_the_byte_where_all_entries_are_used(kind: wire.Values, small_density: float) -> None:
    named = {"a": torch.zeros(40, 30), "b": torch.zeros(40), "c": torch.zeros(5, 5, 4)}
    layout = Layout.of(named.items(), 50, small_density, 3)
    data = dgc.compress(layout, kind, 0.05, None, torch.randn(layout.numel), masking=False)
    assert len(data) == promised_bytes(layout, 0.05, kind)
    assert len(unpack(layout, data).positions) == 60 + 5 + (40 if small_density == 1 else 8)


@pytest.mark.parametrize("kind", KINDS)
def test_values_on_the_wire_are_finite_whatever_was_accumulated(kind: wire.Values) -> None:
    large = torch.tensor([7e4, -1e30, 3.4e38, 1.0, 0.0, 1e-44])
    coded = wire.encode(large, kind)
    assert torch.isfinite(coded.decode()).all()
    assert torch.equal(wire.from_bytes(wire.to_bytes(coded), kind, 6).decode(), coded.decode())


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=300))
def test_eight_bits_are_off_by_half_a_step_at_most(values: list[float]) -> None:
    tensor = torch.tensor(values)
    coded = wire.encode(tensor, "int8")
    assert coded.scales is not None
    steps = torch.repeat_interleave(coded.scales, wire.BLOCK)[: len(values)]
    normal = steps > 1e-36  # a scale that is nearly zero has few bits of its own
    assert ((coded.decode() - tensor).abs() <= steps * 0.501)[normal].all()


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(KINDS))
def test_damage_is_an_error_and_nothing_else(data: st.DataObject, kind: wire.Values) -> None:
    good = message(kind)[0]
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


@settings(max_examples=500, deadline=None)
@given(st.data(), st.sampled_from(KINDS))
def test_damage_under_a_right_checksum_reads_nothing_outside(data: st.DataObject, kind: wire.Values) -> None:
    """What a checksum cannot catch: header and body changed together. Either an error, or finite values at positions
    that are there, no two equal."""
    broken = bytearray(message(kind)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(st.integers(4, HEADER.size - 5), st.integers(HEADER.size, len(broken) - 1)))
        broken[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        broken = broken[: data.draw(st.integers(HEADER.size, len(broken)))]
    broken[HEADER.size - 4 : HEADER.size] = zlib.crc32(broken[HEADER.size :]).to_bytes(4, "little")
    try:
        said = unpack(LAYOUT, broken)
    except MessageError:
        return
    assert said.positions.unique().numel() == said.positions.numel() == said.values.numel()
    assert not said.positions.numel() or 0 <= said.positions.min() <= said.positions.max() < LAYOUT.numel
    assert torch.isfinite(said.values).all()
