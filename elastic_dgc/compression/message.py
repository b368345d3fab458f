"""The message of one virtual worker: format version 3. This docstring is its definition.

    magic "DGCM" | version u8 | values u8 | reserved u16 | numel u32 | entries u32 | dense u32 | crc32 u32
    values       dense + entries of them    of the dense tensors, in layout order, then the sparse entries', by position
    positions    of the sparse entries      Elias-Fano, see `positions`

Little-endian. `values`: 0 fp32, 1 bf16, 2 fp16, 3 int8; int8 has the scales of its blocks of 128 (fp32) before the
values. `numel` is the length of the index space, `dense` and `entries` count values. `crc32` covers everything behind
the header.
A decoder never reads outside and never returns what was not sent: damaged bytes are a `MessageError`.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from elastic_dgc.compression import positions as coded
from elastic_dgc.compression import values as wire
from elastic_dgc.compression.config import Values
from elastic_dgc.compression.layout import Layout
from elastic_dgc.errors import MessageError

HEADER = struct.Struct("<4sBBHIIII")
MAGIC = b"DGCM"
VERSION = 3
KINDS: tuple[Values, ...] = get_args(Values)


@dataclass(frozen=True)
class Message:
    """What a message says: `positions` int64[n], no two equal, `values` fp32[n]; dense tensors included."""

    positions: Tensor
    values: Tensor


def promised_bytes(layout: Layout, density: float, kind: Values) -> int:
    """The most bytes a message takes at a density: what `require_compression` holds packed bytes against."""
    entries = layout.entries(density)
    return HEADER.size + wire.size(kind, layout.dense_numel + entries) + sum(coded.sizes(layout.numel, entries))


def pack(layout: Layout, kind: Values, values: wire.Coded, positions: Tensor) -> bytes:
    """`positions`: int64[n] ascending, of sparse tensors; `values`: all of the dense tensors' elements, then theirs."""
    index = positions.cpu().numpy()
    body = wire.to_bytes(values) + coded.encode(index, layout.numel)
    code = KINDS.index(kind)
    return HEADER.pack(MAGIC, VERSION, code, 0, layout.numel, len(index), layout.dense_numel, zlib.crc32(body)) + body


def unpack(layout: Layout, data: bytes | bytearray | memoryview) -> Message:
    """The inverse, on the CPU. Raises `MessageError` on anything that `pack` did not make for this layout."""
    view = memoryview(data)
    if len(view) < HEADER.size:
        raise MessageError(f"a message of {len(view)} bytes is shorter than its header of {HEADER.size}")
    magic, version, code, reserved, numel, entries, dense, crc = HEADER.unpack_from(view)
    if magic != MAGIC or version != VERSION or code >= len(KINDS) or reserved:
        raise MessageError(f"not a message of format {VERSION}: it starts with {bytes(view[:8])!r}")
    if numel != layout.numel or dense != layout.dense_numel or entries > numel - dense:
        raise MessageError(f"a message for {numel} parameters ({dense} dense) where {layout.numel} are trained")
    kind, body = KINDS[code], view[HEADER.size :]
    cut, end = wire.size(kind, dense + entries), wire.size(kind, dense + entries) + sum(coded.sizes(numel, entries))
    if len(body) != end:
        raise MessageError(f"a message of {entries} entries has {end} bytes behind its header, not {len(body)}")
    if zlib.crc32(body) != crc:
        raise MessageError("a message's checksum does not fit its bytes")
    index = torch.from_numpy(coded.decode(body[cut:], numel, entries))
    if entries and index[0] < dense:  # they ascend
        raise MessageError("a message sends entries of a tensor that travels whole")
    values = wire.from_bytes(body[:cut], kind, dense + entries)
    return Message(torch.cat([layout.dense_positions, index]), values.decode())
