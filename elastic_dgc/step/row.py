"""One virtual worker's row of the vote, as it travels."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Payload

_HEAD = struct.Struct("<BBBxqqqqdddd16sI")
_VERSION = 2
TEXT_BYTES = 8192
ROW_BYTES = _HEAD.size  # of a row without text


class Health(IntEnum):
    """How a virtual worker's forward and backward went."""

    GOOD = 0
    NON_FINITE = 1  # in the loss or a buffer already: no loss scale helps
    ERROR = 2
    OVERFLOW = 3  # in the gradient only


class Request(IntFlag):
    """What a worker wants to happen at the boundary after this attempt. Everyone sees it, so everyone does it."""

    NONE = 0
    CHECKPOINT = 1
    STOP = 2
    FENCED = 4  # a newer view was claimed: end without writing
    VIEW = 8  # a change of view is pending: the coordinator waits for the boundary


@dataclass(frozen=True)
class Row:
    """What everyone must know of a virtual worker before anything changes.

    `attempt`, `applied`, `loss_scale` and `identity` prove agreement. `loss_sum` is over `count`, which is the number
    of `samples` unless the task's loss counts something else (tokens).
    `gradient_norm` is of the mean over this virtual worker's share, scaled by the loss scale; `v_norm` of v before the
    attempt, NaN in an attempt that does not measure it.
    """

    health: Health
    requests: Request
    attempt: int
    applied: int
    samples: int
    count: int
    loss_sum: float
    gradient_norm: float
    v_norm: float
    loss_scale: float
    identity: bytes
    text: str = ""

    def pack(self) -> bytes:
        text = self.text.encode()[:TEXT_BYTES]
        head = _HEAD.pack(
            _VERSION, self.health, self.requests, self.attempt, self.applied, self.samples, self.count, self.loss_sum,
            self.gradient_norm, self.v_norm, self.loss_scale, self.identity, len(text),
        )  # fmt: skip
        return head + text

    @staticmethod
    def unpack(data: Payload) -> Row:
        """Raises `MessageError` on anything `pack` did not make."""
        if len(data) < _HEAD.size:
            raise MessageError(f"a vote row of {len(data)} bytes is shorter than {_HEAD.size}")
        fields = _HEAD.unpack_from(data)
        version, health, requests, length = fields[0], fields[1], fields[2], fields[-1]
        if version != _VERSION or health not in Health._value2member_map_ or len(data) != _HEAD.size + length:
            raise MessageError(f"not a vote row of version {_VERSION}: {bytes(data[:8])!r}")
        text = bytes(data[_HEAD.size :]).decode(errors="replace")
        values: list[Any] = [Health(health), Request(requests), *fields[3:-1], text]
        return Row(*values)
