"""Where a non-finite number is, once a norm has told that there is one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def joint_norm(flat: Tensor) -> Tensor:
    """The 2-norm of a flat fp32 vector as a 0-dim tensor. Not finite if any element is not, or if it overflows:
    one pass serves clipping and the check."""
    return torch.linalg.vector_norm(flat)


def first_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """'name (3 of 64 not finite)' for the first tensor with a NaN or an infinity, in order of name; None if all are
    finite."""
    for name, tensor in sorted(tensors.items()):
        if tensor.is_floating_point():
            bad = int((~torch.isfinite(tensor)).sum())
            if bad:
                return f"{name} ({bad} of {tensor.numel()} values not finite)"
    return None


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether every floating value of every tensor is finite; one synchronisation of the device."""
    flags = [torch.isfinite(tensor).all() for tensor in tensors if tensor.is_floating_point()]
    return not flags or bool(torch.stack(flags).all())
