"""The message of one virtual worker: format version 1.

    magic "DGCM" | version u8 | values u8 | reserved u16 | numel u32 | entries u32 | dense u32 | crc32 u32
    dense values     dense * value size      all elements of the dense tensors, in layout order
    sparse values    entries * value size    in order of position
    positions        Elias-Fano              see `positions`

Little-endian. `crc32` covers everything behind the header. A decoder never reads outside and never returns what was
not sent: damaged bytes are a `MessageError`.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from elastic_dgc.compression import positions as coded
from elastic_dgc.compression import values as wire
from elastic_dgc.compression.config import Values
from elastic_dgc.compression.layout import Layout
from elastic_dgc.errors import MessageError

HEADER = struct.Struct("<4sBBHIIII")
MAGIC = b"DGCM"
VERSION = 1
KINDS: tuple[Values, ...] = get_args(Values)


@dataclass(frozen=True)
class Message:
    """What a message says: `positions` int64[n] ascending, `values` [n] in the wire's type, dense tensors included."""

    positions: Tensor
    values: Tensor


def promised_bytes(layout: Layout, density: float, kind: Values) -> int:
    """The most bytes a message takes at a density: what `require_compression` holds packed bytes against."""
    entries = layout.entries(density)
    return HEADER.size + (entries + layout.dense_numel) * wire.BYTES[kind] + sum(coded.sizes(layout.numel, entries))


def pack(layout: Layout, kind: Values, dense: Tensor, positions: Tensor, values: Tensor) -> bytes:
    """`dense` [dense_numel] and `values` [n] in the wire's type, `positions` int64[n] ascending, of sparse tensors."""
    entries = positions.numel()
    index = positions.cpu().numpy()
    body = wire.to_bytes(dense) + wire.to_bytes(values) + coded.encode(index, layout.numel)
    code = KINDS.index(kind)
    return HEADER.pack(MAGIC, VERSION, code, 0, layout.numel, entries, dense.numel(), zlib.crc32(body)) + body


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
    size = wire.BYTES[KINDS[code]]
    body = view[HEADER.size :]
    cuts = [dense * size, (dense + entries) * size, (dense + entries) * size + sum(coded.sizes(numel, entries))]
    if len(body) != cuts[2]:
        raise MessageError(f"a message of {entries} entries has {cuts[2]} bytes behind its header, not {len(body)}")
    if zlib.crc32(body) != crc:
        raise MessageError("a message's checksum does not fit its bytes")
    index = torch.from_numpy(coded.decode(body[cuts[1] :], numel, entries))
    values = wire.from_bytes(body[: cuts[1]], KINDS[code])
    if not np.isfinite(values.float().numpy()).all():
        raise MessageError("a message holds values that are not finite")
    return Message(torch.cat([layout.dense_positions, index]), values)
