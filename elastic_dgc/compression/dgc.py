"""The arithmetic of DGC for one virtual worker, as pure functions on flat vectors, out of place.

Units: a gradient comes in already divided by the *global* number of samples of its step, so messages are summed,
never averaged, and what is still to be sent is literally sum(v). (Lin et al., ICLR 2018, section 3; the sum
convention also makes the factor of local clipping K**-0.5.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elastic_dgc.compression.layout import Layout, count
from elastic_dgc.compression.select import top_k


@dataclass(frozen=True)
class Momentum:
    """Momentum correction's constants. `None` in its place means plain error feedback: no u, v' = v + g."""

    factor: float
    nesterov: bool = False


def clip_factor(norm: Tensor | float, clip: float, virtual_workers: int) -> float:
    """min(1, clip * K**-0.5 / (norm + 1e-6)). K**-0.5 and not K**+0.5 because the gradient already contains 1/K."""
    return min(1.0, clip * virtual_workers**-0.5 / (float(norm) + 1e-6))


def accumulate(
    gradient: Tensor, u: Tensor | None, v: Tensor, momentum: Momentum | None, into_u: Tensor | None, into_v: Tensor
) -> None:
    """Momentum and accumulation, from (u, v) into (into_u, into_v), which must not share memory with them.

    plain: u' = m*u + g, v' = v + u'.  Nesterov: u' = m*(u + g), v' = v + u' + g.  Without momentum: v' = v + g.
    All are 1-dim of the layout's numel. Only `into_u` and `into_v` are changed.
    """
    if momentum is None:
        torch.add(v, gradient, out=into_v)
        return
    assert u is not None
    assert into_u is not None
    if momentum.nesterov:
        torch.add(u, gradient, out=into_u)
        into_u.mul_(momentum.factor)
        torch.add(v, into_u, out=into_v)
        into_v.add_(gradient)
    else:
        torch.add(gradient, u, alpha=momentum.factor, out=into_u)
        torch.add(v, into_u, out=into_v)


def select(layout: Layout, v: Tensor, density: float) -> Tensor:
    """Positions to send of the sparse tensors: each one's own top k, ascending over the index space (int64)."""
    parts = []
    for segment in layout.sparse:
        flat = v[segment.offset : segment.offset + segment.numel]
        parts.append(top_k(flat, count(segment.numel, density)) + segment.offset)
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=v.device)


def clear(v: Tensor, positions: Tensor, sent: Tensor) -> None:
    """v[positions] -= sent: what was rounded away for the wire stays. Changes v."""
    v[positions] -= sent.to(v.dtype)


def mask(u: Tensor | None, positions: Tensor) -> None:
    """Momentum factor masking: u[positions] = 0 (section 3.3). Changes u."""
    if u is not None:
        u[positions] = 0


def add_message(total: Tensor, positions: Tensor, values: Tensor) -> None:
    """total[positions] += values, for unique positions, without atomics: the result has one order on every device."""
    total[positions] = total[positions] + values.to(total.dtype)
