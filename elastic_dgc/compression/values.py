"""The values of a message in the type of the wire."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from elastic_dgc.compression.config import Values

DTYPES: dict[Values, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BYTES: dict[Values, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
FP16_MAX = 65504.0


def encode(values: Tensor, kind: Values) -> Tensor:
    """`values` rounded to the wire's type, finite if they were (R8): beyond its range they are clamped, and what was
    cut off stays in the residual. Same shape and device."""
    if kind == "fp16":
        return values.clamp(-FP16_MAX, FP16_MAX).to(torch.float16)
    if kind == "bf16":
        limit = torch.finfo(torch.bfloat16).max
        return values.clamp(-limit, limit).to(torch.bfloat16)
    return values.to(torch.float32)


def to_bytes(values: Tensor) -> bytes:
    """The little-endian bytes of a tensor of a wire type."""
    cpu = values.detach().to("cpu").contiguous()
    return cpu.view(torch.uint8).numpy().tobytes() if cpu.numel() else b""


def from_bytes(data: memoryview | bytes, kind: Values) -> Tensor:
    """A tensor of the wire's type, a copy. The length must be a multiple of the type's size."""
    raw = np.frombuffer(data, dtype=np.uint8)
    return torch.from_numpy(raw.copy()).view(DTYPES[kind]) if raw.size else torch.empty(0, dtype=DTYPES[kind])
