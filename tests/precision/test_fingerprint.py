"""The digest on the device sees every bit and its place, and is a number that any machine computes alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elastic_dgc.precision import fingerprint as module
from elastic_dgc.precision.fingerprint import BLOCK, fingerprint, fingerprints

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int16,
          torch.uint8, torch.bool, torch.complex64]  # fmt: skip
MODULUS = 2**64


def one(tensor: Tensor) -> str:
    return fingerprints({"t": tensor})["t"]


def drawn(dtype: torch.dtype, count: int, seed: int = 0) -> Tensor:
    """Every kind of bytes there is, NaNs too."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    high = 2 if dtype is torch.bool else 256
    data = torch.randint(0, high, (count * size,), dtype=torch.uint8, generator=generator)
    return data.view(dtype)


def split_mix(state: int) -> int:
    z = state * 0x9E3779B97F4A7C15 % MODULUS
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % MODULUS
    z = (z ^ z >> 27) * 0x94D049BB133111EB % MODULUS
    return (z ^ z >> 31) | 1


def by_hand(tensor: Tensor) -> str:
    """The definition, in Python's integers."""
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    kinds = {1: np.uint8, 2: np.int16}
    words = [int(word) for word in np.frombuffer(data, kinds.get(tensor.element_size(), np.int32))]
    digits = ""
    for stream in (1, 2):
        total = 0
        for at, word in enumerate(words):
            place = split_mix((stream << 40) + at % BLOCK + 1)
            block = split_mix((2 + stream << 40) + at // BLOCK + 1)
            total += word * place * block
        digits += f"{total % MODULUS:016x}"
    return f"{tensor.dtype} {tuple(tensor.shape)} {digits}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_is_the_sum_that_it_is_defined_to_be_whatever_the_type(dtype: torch.dtype) -> None:
    """In integers, which round nothing: so a GPU must find the same."""
    for count in (0, 1, 100):
        assert one(drawn(dtype, count)) == by_hand(drawn(dtype, count))
    scalar = drawn(dtype, 1).reshape(())
    assert one(scalar) == by_hand(scalar)


@pytest.mark.parametrize("count", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_blocks_and_chunks_change_nothing(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = drawn(torch.float32, count)
    expected = by_hand(tensor)
    for chunk in (module.CHUNK, BLOCK, 2 * BLOCK):
        monkeypatch.setattr(module, "CHUNK", chunk)
        assert one(tensor) == expected


@settings(deadline=None)
@given(st.sampled_from(DTYPES[:8]), st.integers(1, 2 * BLOCK), st.data())
def test_one_flipped_bit_anywhere_and_two_words_that_change_places_are_seen(
    dtype: torch.dtype, count: int, data: st.DataObject
) -> None:
    tensor = drawn(dtype, count, seed=count)
    flipped = tensor.clone()
    raw = flipped.view(torch.uint8)
    raw[data.draw(st.integers(0, raw.numel() - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert one(flipped) != one(tensor)
    i, j = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, count - 1))
    swapped = tensor.clone()
    swapped[i], swapped[j] = tensor[j].clone(), tensor[i].clone()
    assert (one(swapped) == one(tensor)) == (swapped.view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist())


def test_what_sums_and_xors_are_blind_to_is_seen() -> None:
    base = torch.arange(1.0, 9.0)
    nan = torch.full((8,), float("nan"))
    payload = nan.clone()
    payload.view(torch.int32)[0] ^= 1
    ramp = base.view(torch.int32).clone()
    ramp[2:5] += torch.tensor([1, -2, 1], dtype=torch.int32)  # a sum weighted by the position does not change
    signs = torch.zeros(8, dtype=torch.float64)
    signs[[1, 6]] = -0.0  # two bits 63: 2 * 2**63 * odd is nothing in 64 bits
    pairs = base.clone()
    pairs[[0, 1]] = 7.5  # equal pairs cancel out in an XOR
    others = pairs.clone()
    others[[0, 1]] = 3.25
    seen = [base, base.flip(0), -base, base.roll(1), nan, payload, ramp.view(torch.float32), torch.ones(8), pairs,
            torch.zeros(8), -torch.zeros(8), others, torch.zeros(8, dtype=torch.float64), signs, torch.zeros(2, 4),
            torch.zeros(8, dtype=torch.int32), torch.zeros(4), torch.zeros(0), torch.zeros(())]  # fmt: skip
    assert len({one(tensor) for tensor in seen}) == len(seen)


def test_names_and_the_text_count_and_where_a_tensor_lies_does_not() -> None:
    a, b = torch.arange(6.0), torch.arange(6.0) + 1
    assert len({fingerprint(t) for t in ({"a": a, "b": b}, {"a": b, "b": a}, {"a": a}, {})}) == 4
    assert fingerprint({"a": a, "b": b}, "x") == fingerprint({"b": b, "a": a}, "x") != fingerprint({"a": a, "b": b})
    table = torch.arange(24.0).view(4, 6)
    assert one(table.t()) == one(table.t().contiguous())
    assert one(table.view(-1)[1:7]) == one(table.view(-1)[1:7].clone())
    assert torch.equal(table, torch.arange(24.0).view(4, 6))


@pytest.mark.parametrize("words", [0, 1000, 25_000_000, 10**9])
def test_scratch_is_small(words: int) -> None:
    """Two int64 per word of a chunk."""
    assert 16 * module._chunk(words) <= max(2**20, 4 * words // 100)
