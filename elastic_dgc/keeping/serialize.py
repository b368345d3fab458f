"""The one serializer of state: named tensors and plain fields to bytes and back, bit for bit.

The format is safetensors, which any torch user can read and which runs no code when loaded; the fields travel as one
JSON string in its header. It holds no checksum of the tensors: frames and manifests, the only things that carry these
bytes, have one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import _SIZE, load, save

from elastic_dgc.errors import MessageError, UsageError
from elastic_dgc.keeping.canonical import canonical_json

_FIELDS = "fields"
_RESERVED = "__metadata__"


def pack(tensors: Mapping[str, torch.Tensor], fields: Mapping[str, Any]) -> bytes:
    """Bytes of named tensors (dense, any shape and dtype of safetensors, any device) and JSON-able fields.

    Equal input gives equal bytes, whatever the order of the mappings. Nothing is mutated; views, transposed tensors
    and tensors that share memory are stored each on its own. Raises TypeError or ValueError on what cannot be stored,
    `UsageError` (see `check_types`) on a dtype that the format does not have.
    """
    check_types(tensors)
    # One metadata key only: safetensors writes several in no fixed order.
    metadata = {_FIELDS: canonical_json(dict(fields))}
    storable: dict[str, torch.Tensor] = {}
    memories: set[int] = set()
    for name in sorted(tensors):
        tensor = _storable(name, tensors[name])
        memory = tensor.untyped_storage().data_ptr()
        storable[name] = tensor.clone() if memory in memories else tensor
        memories.add(memory)
    return bytes(save(storable, metadata))


def check_types(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises `UsageError` where a tensor's dtype can be neither saved nor sent: complex128, say."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _SIZE:
            raise UsageError(
                f"'{name}' is {tensor.dtype}, which safetensors cannot hold, so it can be neither saved nor sent to "
                f"other workers: make it a float, an integer or complex64"
            )


def unpack(data: bytes | bytearray | memoryview) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors (on CPU, each with memory of its own, by name) and fields that `pack` was given.

    Tuples among the fields come back as lists. Raises `MessageError`, and nothing else, on other bytes.
    """
    data = bytes(data)
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        fields = json.loads(json.loads(data[8 : 8 + length])[_RESERVED][_FIELDS])
        if not isinstance(fields, dict):
            raise TypeError(f"fields are a {type(fields).__name__}")
    except (
        SafetensorError,
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        RecursionError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise MessageError(
            f"packed state of {len(data)} bytes is damaged ({type(error).__name__}: {reason})"
        ) from error
    return {name: tensors[name] for name in sorted(tensors)}, fields


def _storable(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if name == _RESERVED:
        raise ValueError(f"a tensor cannot be named {_RESERVED!r}: the file format reserves it")
    if tensor.layout != torch.strided:
        raise ValueError(f"tensor {name!r} is {tensor.layout}: only dense tensors can be stored")
    tensor = tensor.detach().to("cpu").resolve_conj().resolve_neg()
    whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    # A part of a larger memory may share it with another tensor, which safetensors refuses.
    return tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
