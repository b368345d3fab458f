"""Half precision by autocast: parameters, gradients, residuals and sums stay fp32; only forward's products are half."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

import torch

from elastic_dgc.errors import UsageError

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose(asked: Precision | Literal["auto"], device: str) -> Precision:
    """What 'auto' means on a device type: bf16 on GPUs, fp32 on CPUs. It is no question of the machine that asks, so
    that a run is the same run wherever it is started and resumed."""
    if asked != "auto":
        return asked
    return "bf16" if device == "cuda" else "fp32"


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context for one forward pass and its loss. Backward is to be outside of it."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])


def check(precision: Precision, device: torch.device) -> str | None:
    """Raises `UsageError` where this device cannot compute so. Else returns what a user should know of it, or None."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise UsageError(f"precision = 'bf16': {name} has no bf16; use fp16 or fp32")
        return None
    if precision == "bf16" and not torch.cpu._is_avx512_bf16_supported():
        return "this processor has no bf16 and computes it in software, several times slower than --precision fp32"
    if precision == "fp16" and not torch.cpu._is_amx_fp16_supported():
        return "this processor has no fp16 and computes it in software, several times slower than --precision fp32"
    return None
