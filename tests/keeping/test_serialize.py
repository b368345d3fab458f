"""State comes back bit for bit, as equal bytes for equal input, and damage is one kind of error."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_dgc.errors import MessageError
from elastic_dgc.keeping.serialize import pack, unpack

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7)])
def test_every_bit_of_every_dtype_and_shape_comes_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    size = math.prod(shape) * dtype.itemsize
    high = 2 if dtype is torch.bool else 256  # any bit pattern, so NaNs with payloads and -0.0 too
    tensor = torch.randint(0, high, (size,), generator=generator, dtype=torch.uint8).view(dtype).view(shape)
    back, fields = unpack(pack({"t": tensor}, {}))
    assert (back["t"].dtype, back["t"].shape, fields) == (dtype, tensor.shape, {})
    assert raw(back["t"]) == raw(tensor)


def test_views_and_shared_memory_are_stored_each_on_its_own_and_nothing_is_changed() -> None:
    base = torch.arange(12.0).view(3, 4)
    tensors = {"base": base, "again": base, "row": base[1], "column": base[:, 1], "t": base.T, "p": base.view(-1)}
    parameter = torch.nn.Parameter(base.clone())
    back, _ = unpack(pack({**tensors, "parameter": parameter}, {}))
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor), name
    assert not back["parameter"].requires_grad
    back["base"].add_(1)  # memory of its own, writable
    assert torch.equal(back["again"], torch.arange(12.0).view(3, 4))
    assert torch.equal(base, torch.arange(12.0).view(3, 4))


def test_equal_input_gives_equal_bytes_whatever_the_order() -> None:
    tensors = {f"layer{i}.{kind}": torch.full((i,), float(i)) for i in range(6) for kind in ("w", "b")}
    fields = {"attempt": 7, "a": {"y": 1, "x": [1, 2]}, "z": None}
    backwards = dict(reversed(tensors.items()))
    assert pack(tensors, fields) == pack(backwards, {"z": None, "a": {"x": (1, 2), "y": 1}, "attempt": 7})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_fields_survive_exactly(fields: dict[str, object]) -> None:
    _, back = unpack(pack({}, fields))
    assert json.dumps(back, sort_keys=True) == json.dumps(fields, sort_keys=True)


def test_what_would_be_changed_unseen_is_refused() -> None:
    with pytest.raises(TypeError, match="shared has the key 3: keys of stored fields must be strings"):
        pack({}, {"shared": {3: "x"}})
    with pytest.raises(TypeError, match=r"losses\[1\] is a Tensor"):
        pack({}, {"losses": [1.0, torch.zeros(())]})
    with pytest.raises(ValueError, match="only dense"):
        pack({"s": torch.zeros(3).to_sparse()}, {})


def test_any_damage_is_a_message_error_or_no_damage_to_the_format() -> None:
    whole = pack({"w": torch.arange(6.0), "n": torch.tensor([1, 2])}, {"attempt": 3, "loss": 0.1})
    for length in range(len(whole)):
        with pytest.raises(MessageError, match="damaged"):
            unpack(whole[:length])
    dice = random.Random(5)
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data) if dice.random() < 0.2 else 200)] = dice.randrange(256)
        try:
            unpack(data)
        except MessageError:
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize("fields", [b"[" * 100_000, b'{"a":', b"3", b"\xff"])
def test_a_header_with_other_fields_is_refused(fields: bytes) -> None:
    header = b'{"__metadata__":{"fields":"' + fields.replace(b'"', b'\\"') + b'"}}'
    with pytest.raises(MessageError):
        unpack(len(header).to_bytes(8, "little") + header)
