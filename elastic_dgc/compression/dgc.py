"""The arithmetic of DGC for one virtual worker, as pure functions on flat vectors, out of place.

Units: a gradient comes in already divided by the *global* number of samples of its step, so messages are summed,
never averaged, and what is still to be sent is literally sum(v). (Lin et al., ICLR 2018, section 3; the sum
convention also makes the factor of local clipping K**-0.5.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from elastic_dgc.compression import values as wire
from elastic_dgc.compression.accumulate import Workspace
from elastic_dgc.compression.config import Values
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import Message, pack
from elastic_dgc.compression.select import top_k


def clip_factor(norm: Tensor | float, clip: float, virtual_workers: int) -> float:
    """min(1, clip * K**-0.5 / (norm + 1e-6)). K**-0.5 and not K**+0.5 because the gradient already contains 1/K."""
    return min(1.0, clip * virtual_workers**-0.5 / (float(norm) + 1e-6))


def select(layout: Layout, v: Tensor, density: float, workspace: Workspace | None = None) -> Tensor:
    """Positions of the largest entries of the sparse tensors: each one's own top k, ascending over the index space
    (int64). `workspace`: as `accumulate` left it for this v. Zeros are among them only where a tensor has fewer
    others than k; they are not to be sent."""
    parts, counts = [], layout.counts(density)
    for segment in layout.sparse:
        flat = v[segment.offset : segment.offset + segment.numel]
        maxima = None if workspace is None else workspace.maxima(segment)
        parts.append(top_k(flat, counts[segment.offset], maxima).add_(segment.offset))
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=v.device)


def compress(
    layout: Layout,
    kind: Values,
    density: float,
    u: Tensor | None,
    v: Tensor,
    masking: bool,
    workspace: Workspace | None = None,
) -> bytes:
    """Select, encode, clear and mask: one virtual worker's packed message. Changes v (what was rounded away for the
    wire stays, zeros are not sent) and, with momentum factor masking (section 3.3), u.

    The device is waited for once, when what was selected is copied to the CPU.
    """
    device, dense = v.device, layout.dense_numel
    picked = select(layout, v, density, workspace)
    held = torch.cat([v[:dense], v.index_select(0, picked)])
    moved = torch.cat([picked.to(torch.int32), held.float().view(torch.int32)]).cpu()
    positions, values = moved[: picked.numel()].to(torch.int64), moved[picked.numel() :].view(torch.float32)
    sent = values[dense:] != 0
    if not bool(sent.all()):
        positions, values = positions[sent], torch.cat([values[:dense], values[dense:][sent]])
        picked = positions.to(device)
        held = torch.cat([v[:dense], v.index_select(0, picked)])
    coded = wire.encode(values, kind)
    read = coded.decode()
    rest = held - read.to(device, v.dtype)
    v[:dense] = rest[:dense]
    v.index_copy_(0, picked, rest[dense:])
    if masking and u is not None:
        kept = read[dense:] == 0  # what was rounded to nothing was not sent: it keeps its momentum
        entries = positions[~kept].to(device) if bool(kept.any()) else picked
        u.index_fill_(0, entries, 0.0)
    return pack(layout, kind, coded, positions)


def clear_sent(layout: Layout, message: Message, u: Tensor | None, v: Tensor, masking: bool) -> None:
    """Take out of v, and with momentum factor masking out of u, what a message says was sent: as `compress` leaves
    them, whose message it is. Changes u and v."""
    dense = layout.dense_numel
    values = message.values.to(v.device, v.dtype)
    v[:dense] -= values[:dense]
    picked = message.positions[dense:].to(v.device)
    v.index_copy_(0, picked, v.index_select(0, picked) - values[dense:])
    if masking and u is not None:
        u.index_fill_(0, picked[values[dense:] != 0], 0.0)


def add_message(total: Tensor, positions: Tensor, values: Tensor) -> None:
    """total[positions] += values, for unique positions, without atomics: the result has one order on every device."""
    total.index_copy_(0, positions, total.index_select(0, positions) + values)
