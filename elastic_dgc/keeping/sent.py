"""Where a virtual worker has sent something since the last checkpoint: one bit for each position of the index space.

Every worker keeps one per virtual worker. When nothing newer than a stale copy is left of a virtual worker, what was
sent since must not be sent again: it was applied by everyone (see `step.stale`).
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import torch
from torch import Tensor

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Payload

_HEAD = struct.Struct("<4sBBHQI")  # magic, version, reserved, reserved, numel, crc
_MAGIC, _VERSION = b"DGCB", 1


class SentSince:
    """The bitmap of one virtual worker. To be cleared when a durable checkpoint of its state is complete."""

    def __init__(self, numel: int) -> None:
        self.numel = numel
        self._bits = np.zeros(-(-numel // 8), dtype=np.uint8)

    @property
    def size_bytes(self) -> int:
        """What it takes: an eighth of the positions."""
        return int(self._bits.nbytes)

    def add(self, positions: Tensor) -> None:
        """A message was applied: its positions, int64[n] (dense tensors' included). The cost follows n, not numel.
        Raises ValueError, with nothing changed, on a position outside."""
        at = positions.cpu().numpy()
        if not at.size:
            return
        if (at[1:] < at[:-1]).any():
            at = np.sort(at)
        if at[0] < 0 or at[-1] >= self.numel:
            raise ValueError(f"positions {at[0]}..{at[-1]} where there are 0..{self.numel - 1}")
        places, bits = at >> 3, np.left_shift(np.uint8(1), (at & 7).astype(np.uint8))
        starts = np.flatnonzero(np.diff(places, prepend=-1))  # where another byte begins
        self._bits[places[starts]] |= np.bitwise_or.reduceat(bits, starts)

    def add_all(self) -> None:
        """A whole step was applied: everything was sent."""
        self._bits[:] = 255

    def clear(self) -> None:
        """The state up to now is in a checkpoint."""
        self._bits[:] = 0

    def mask(self) -> Tensor:
        """bool[numel], on the CPU: True where something was sent."""
        return torch.from_numpy(np.unpackbits(self._bits, count=self.numel, bitorder="little").view(np.bool_))

    def pack(self) -> bytes:
        """The bitmap with its length and a CRC-32 of both."""
        bits = self._bits.tobytes()
        return _HEAD.pack(_MAGIC, _VERSION, 0, 0, self.numel, zlib.crc32(bits, self.numel & 0xFFFFFFFF)) + bits

    @staticmethod
    def unpack(data: Payload) -> SentSince:
        """The inverse. Raises `MessageError` on anything that `pack` did not make."""
        view = memoryview(data)
        if len(view) < _HEAD.size:
            raise MessageError(f"a bitmap of {len(view)} bytes is shorter than its header of {_HEAD.size}")
        magic, version, zero, also_zero, numel, crc = _HEAD.unpack_from(view)
        bits = view[_HEAD.size :]
        if magic != _MAGIC or version != _VERSION or zero or also_zero:
            raise MessageError(f"not a bitmap of format {_VERSION}: it starts with {bytes(view[:8])!r}")
        if len(bits) != -(-numel // 8) or zlib.crc32(bits, numel & 0xFFFFFFFF) != crc:
            raise MessageError(f"a bitmap of {numel} positions is damaged: {len(bits)} bytes, or another checksum")
        found = SentSince(numel)
        found._bits[:] = np.frombuffer(bits, dtype=np.uint8)
        return found
