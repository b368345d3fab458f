"""The vote: every rank's row reaches all before anything is accumulated, so all decide alike and nobody hangs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from elastic_dgc.errors import Disagreement

_ROW = struct.Struct("<B7xqqdd16s")
ROW_BYTES = 8 + _ROW.size  # with the length before it


class Health(IntEnum):
    """`ERROR`: something is wrong with the request itself; its text follows in a second gather."""

    GOOD = 0
    NON_FINITE = 1
    ERROR = 2


@dataclass(frozen=True)
class Row:
    """One rank's row. `norm`: of its gradient, unscaled, divided by the world size. The rest must be equal everywhere:
    `digest` (16 bytes) stands for settings, parameters and what was taken over from the optimizer."""

    health: Health
    applied: int
    skipped: int
    norm: float
    scale: float
    digest: bytes

    def pack(self) -> bytes:
        return _ROW.pack(self.health, self.applied, self.skipped, self.norm, self.scale, self.digest)

    @staticmethod
    def unpack(raw: bytes) -> Row:
        health, *others = _ROW.unpack(raw)
        return Row(Health(health), *others)


_WORDS = {
    "applied": "applied steps",
    "skipped": "skipped steps",
    "scale": "loss scale",
    "digest": "settings",
}


def agree(rows: Sequence[Row]) -> None:
    """Raises `Disagreement`, on all ranks alike, where ranks that must be equal are not."""
    for rank, row in enumerate(rows):
        for field, words in _WORDS.items():
            there, here = getattr(rows[0], field), getattr(row, field)
            if there != here:
                values = [one.hex()[:8] if isinstance(one, bytes) else f"{one:g}" for one in (here, there)]
                raise Disagreement(
                    f"rank {rank} has other {words} than rank 0 ({values[0]}, {values[1]}): all ranks must run the "
                    f"same script with the same settings and load checkpoints of the same step"
                )
