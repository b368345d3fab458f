"""The values of a message in the type of the wire. Whatever the type rounds away stays in the residual.

`int8`: blocks of 128 values share a scale, the largest magnitude of the block / 127 in fp32, in which the values are
counted. The 8 bits of a value so become 8.25.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elastic_dgc.compression.config import Values
from elastic_dgc.errors import MessageError

DTYPES: dict[Values, torch.dtype] = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8,
}  # fmt: skip
BLOCK = 128
STEPS = 127
INT8_MAX = 1e38  # so that scale * 127 is finite whichever way the scale was rounded


@dataclass(frozen=True)
class Coded:
    """`data` [n] in the wire's type, and for int8 `scales` fp32[ceil(n / 128)]."""

    data: Tensor
    scales: Tensor | None = None

    def decode(self) -> Tensor:
        """fp32[n]: what every receiver reads, and the sender subtracts. One fp32 product a value: equal everywhere."""
        if self.scales is None:
            return self.data.float()
        steps = self.data.float()
        return steps.mul_(self.scales.repeat_interleave(BLOCK)[: steps.numel()])


def encode(values: Tensor, kind: Values) -> Coded:
    """`values` [n], fp32 and finite, rounded to the wire's type, and finite there too (R8): beyond its range they are
    clamped, and what was cut off stays in the residual. Same device."""
    if kind == "fp32":
        return Coded(values.float())
    if kind != "int8":
        limit = torch.finfo(DTYPES[kind]).max
        return Coded(values.clamp(-limit, limit).to(DTYPES[kind]))
    blocks = _blocks(values)
    padded = torch.zeros(blocks * BLOCK, device=values.device)
    padded[: values.numel()] = values.clamp(-INT8_MAX, INT8_MAX)
    rows = padded.view(blocks, BLOCK)
    scales = rows.abs().amax(1).div_(STEPS)
    # A block of zeros, or of values so small that their scale is zero, is sent as zeros.
    steps = (rows / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round_().clamp_(-STEPS, STEPS)
    return Coded(steps.to(torch.int8).flatten()[: values.numel()].contiguous(), scales)


def _blocks(values: Tensor) -> int:
    return -(-values.numel() // BLOCK)


def size(kind: Values, count: int) -> int:
    """Bytes of so many values."""
    scales = 4 * -(-count // BLOCK) if kind == "int8" else 0
    return count * DTYPES[kind].itemsize + scales


def to_bytes(coded: Coded) -> bytes:
    """Little-endian: the scales, if any, then the values."""
    return (b"" if coded.scales is None else _raw(coded.scales)) + _raw(coded.data)


def from_bytes(data: memoryview | bytes | bytearray, kind: Values, count: int) -> Coded:
    """The inverse, a copy on the CPU. Raises `MessageError` on another length, or values that are not finite."""
    if len(data) != size(kind, count):
        raise MessageError(f"{count} values of {kind} take {size(kind, count)} bytes, {len(data)} arrived")
    scales = size(kind, count) - count * DTYPES[kind].itemsize
    coded = Coded(
        _tensor(data[scales:], DTYPES[kind]), _tensor(data[:scales], torch.float32) if kind == "int8" else None
    )
    # int8 steps of a finite scale may still be too large for fp32: the largest there can be tells
    numbers = coded.data if coded.scales is None else coded.scales * (STEPS + 1)
    if not bool(torch.isfinite(numbers).all()):
        raise MessageError("a message holds values that are not finite")
    return coded


def _raw(values: Tensor) -> bytes:
    cpu = values.detach().to("cpu").contiguous()
    return cpu.view(torch.uint8).numpy().tobytes() if cpu.numel() else b""


def _tensor(data: memoryview | bytes | bytearray, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)
