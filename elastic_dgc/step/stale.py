"""What may be taken from a stale copy of owned state, where the present one is lost: tier 2 of recovery."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def stale(u: Tensor | None, v: Tensor, mask: Tensor) -> None:
    """Zero u and v wherever this virtual worker has sent since the copy was made (`mask`, bool of their shape, on any
    device). Changes u and v; raises ValueError where the mask does not fit.

    What is left is mass of the copy that nobody has applied, so nothing is counted twice. Never `copy - sent`: a
    message also has what was accumulated *after* the copy, and the difference would take that out of what was before.
    """
    for vector in (u, v):
        if vector is not None:
            if mask.dtype != torch.bool or mask.shape != vector.shape:
                raise ValueError(f"mask: {mask.dtype} {tuple(mask.shape)} for state of {tuple(vector.shape)}")
            vector.masked_fill_(mask.to(vector.device), 0.0)
