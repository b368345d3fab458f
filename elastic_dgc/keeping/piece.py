"""A piece of a rolling snapshot: whose it is, of which attempt, and a checksum that stays with it wherever it goes.

    magic "DGCK" | version u8 | kind u8 | run's length u16 | view u64 | tag i64 | virtual worker i32 | index i32
    | payload bytes u64 | payload crc u32 | run (UTF-8) | header crc u32 | payload
    payload      of a chunk: u (with momentum), then v, fp32; of buffers: named tensors, see `serialize`

Little-endian. `kind`: 0 a chunk of v, 1 a chunk of u and v, 2 forward's buffers (index -1).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Payload
from elastic_dgc.keeping import serialize

_HEAD = struct.Struct("<4sBBHQqiiQI")
_CRC = struct.Struct("<I")
_MAGIC, _VERSION = b"DGCK", 1
_V, _U_AND_V, _BUFFERS = range(3)


@dataclass(frozen=True)
class Piece:
    """A chunk of u and v, or forward's buffers, after `tag` decided attempts. `index`: the chunk, -1 for buffers.
    `checksum`: CRC-32 of the payload, as whoever made the piece computed it."""

    run: str
    view: int
    virtual_worker: int
    tag: int
    index: int
    kind: int
    checksum: int
    payload: bytes

    @property
    def intact(self) -> bool:
        """Whether the payload is what it was when the piece was made."""
        return zlib.crc32(self.payload) == self.checksum

    @property
    def name(self) -> str:
        """'chunk 3 of virtual worker 1 at tag 17'."""
        what = "the buffers" if self.kind == _BUFFERS else f"chunk {self.index}"
        return f"{what} of virtual worker {self.virtual_worker} at tag {self.tag}"

    def pack(self) -> bytes:
        """The piece as bytes, with the checksum of when it was made."""
        run = self.run.encode()
        head = _HEAD.pack(
            _MAGIC, _VERSION, self.kind, len(run), self.view, self.tag, self.virtual_worker, self.index,
            len(self.payload), self.checksum,
        )  # fmt: skip
        head += run
        return b"".join((head, _CRC.pack(zlib.crc32(head)), self.payload))

    def vectors(self) -> tuple[Tensor | None, Tensor]:
        """(u, v) of a chunk, fp32[n], copies on the CPU; u None without momentum. Raises `MessageError` on buffers."""
        if self.kind == _BUFFERS:
            raise MessageError(f"{self.name}: no chunk of u and v")
        values = torch.frombuffer(bytearray(self.payload), dtype=torch.float32) if self.payload else torch.empty(0)
        half = values.numel() // 2
        return (None, values) if self.kind == _V else (values[:half], values[half:])

    def buffers(self) -> dict[str, Tensor]:
        """The buffers by name, copies on the CPU. Raises `MessageError` on a chunk."""
        if self.kind != _BUFFERS:
            raise MessageError(f"{self.name}: a chunk of u and v where buffers belong")
        return serialize.unpack(self.payload)[0]


def chunk_piece(run: str, view: int, virtual_worker: int, tag: int, index: int, u: Tensor | None, v: Tensor) -> Piece:
    """One chunk of u and v, fp32[n] each, on any device; copied. Raises ValueError where they are not alike."""
    if v.dtype != torch.float32 or v.dim() != 1 or (u is not None and (u.dtype, u.shape) != (v.dtype, v.shape)):
        raise ValueError(f"chunk {index} of virtual worker {virtual_worker}: u and v must be fp32 vectors of one size")
    payload = (b"" if u is None else _raw(u)) + _raw(v)
    kind = _V if u is None else _U_AND_V
    return Piece(run, view, virtual_worker, tag, index, kind, zlib.crc32(payload), payload)


def buffers_piece(run: str, view: int, virtual_worker: int, tag: int, buffers: Mapping[str, Tensor]) -> Piece:
    """Forward's buffers, whole; copied."""
    payload = serialize.pack(buffers, {})
    return Piece(run, view, virtual_worker, tag, -1, _BUFFERS, zlib.crc32(payload), payload)


def pack_chunk(run: str, view: int, virtual_worker: int, tag: int, index: int, u: Tensor | None, v: Tensor) -> bytes:
    """`chunk_piece`, packed."""
    return chunk_piece(run, view, virtual_worker, tag, index, u, v).pack()


def pack_buffers(run: str, view: int, virtual_worker: int, tag: int, buffers: Mapping[str, Tensor]) -> bytes:
    """`buffers_piece`, packed."""
    return buffers_piece(run, view, virtual_worker, tag, buffers).pack()


def unpack_piece(data: Payload, run: str | None = None) -> Piece:
    """The inverse. Raises `MessageError` on anything that these did not make, and on a piece of another run."""
    view = memoryview(data)
    if len(view) < _HEAD.size + _CRC.size or bytes(view[:4]) != _MAGIC:
        raise MessageError(f"not a piece of a snapshot: {len(view)} bytes that start with {bytes(view[:4])!r}")
    _, version, kind, length, number, tag, k, index, size, crc = _HEAD.unpack_from(view)
    end = _HEAD.size + length
    if len(view) < end + _CRC.size or _CRC.unpack_from(view, end)[0] != zlib.crc32(view[:end]):
        raise MessageError("a piece of a snapshot is damaged: the checksum of its header does not fit")
    if version != _VERSION or kind > _BUFFERS:
        raise MessageError(f"snapshot piece of kind {kind}, format {version}; {_VERSION} is known: use one version")
    whose = bytes(view[_HEAD.size : end]).decode(errors="replace")
    found = Piece(whose, number, k, tag, index, kind, crc, bytes(view[end + _CRC.size :]))
    if len(found.payload) != size or not found.intact:
        raise MessageError(f"{found.name}: {len(found.payload)} of {size} bytes, or their checksum does not fit")
    if kind != _BUFFERS and size % (8 if kind == _U_AND_V else 4):
        raise MessageError(f"{found.name}: {size} bytes are no fp32 vectors")
    if run is not None and whose != run:
        raise MessageError(f"{found.name} is of run '{whose}', not of '{run}'")
    return found


def _raw(values: Tensor) -> bytes:
    return values.detach().to("cpu").contiguous().view(torch.uint8).numpy().tobytes()
