"""Exact top-k by magnitude, ties to the lowest index.

`torch.topk` leaves the choice among ties open and costs 560 ms on 25 million values. Here the k groups of 64 values
with the largest maxima are found first: every one of the k largest values lies in one of them (each of k groups that
rank before another holds a value that ranks before all of the other's), so the cut among their values is the exact one.
No threshold has to be guessed, nothing can be missed, and the maxima fall out of the pass that made the values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
Positions = npt.NDArray[np.int64]

GROUPS = (64, 8)  # group sizes, tried in turn
WORTH = 4  # groups are looked through only where their candidates are at most a 4th of all


def group_size(numel: int, k: int) -> int:
    """How many values one group of the filter holds; 1: look through everything."""
    return next((size for size in GROUPS if k * size * WORTH <= numel), 1)


def groups_of(numel: int, size: int) -> int:
    """How many whole groups there are. The rest, under one group, is always a candidate."""
    return numel // size


def group_maxima(values: Tensor, size: int, out: Tensor, scratch: Tensor) -> None:
    """The largest magnitude in each whole group of `values` [n] into `out` [n // size]; `scratch` [>= n] is changed."""
    whole = out.numel() * size
    magnitude = torch.abs(values[:whole], out=scratch[:whole])
    if values.dtype == torch.float32:  # magnitudes order as their bits do, and integers have no NaN to look out for
        magnitude, out = magnitude.view(torch.int32), out.view(torch.int32)
    torch.amax(magnitude.view(-1, size), 1, out=out)


def top_k(values: Tensor, k: int, maxima: Tensor | None = None) -> Tensor:
    """Positions of the k entries of largest magnitude.

    `values`: 1-dim, finite, any float type. `maxima`: what `group_maxima` gives for `group_size(numel, k)`, if it is
    there already. Returns int64[min(k, n)], ascending. Equal magnitudes: the lowest positions win. On a GPU nothing in
    it waits for the device.
    """
    size = group_size(values.numel(), k)
    if size > 1 and maxima is None:
        maxima = values.new_empty(groups_of(values.numel(), size))
        group_maxima(values, size, maxima, torch.empty_like(values))
    if values.device.type == "cpu":
        return torch.from_numpy(_top_k_cpu(values.numpy(), k, size, None if maxima is None else maxima.numpy()))
    return top_k_by_keys(values, k, size, maxima)


def _top_k_cpu(values: Array, k: int, size: int, maxima: Array | None) -> Positions:
    if maxima is None:
        return _cut(np.abs(values), k)[0]
    rows, least = _cut(maxima, k)
    whole = maxima.size * size
    magnitude = values[:whole].reshape(-1, size).take(rows, axis=0).ravel()
    if whole < values.size:
        magnitude = np.concatenate([magnitude, values[whole:]])
    np.abs(magnitude, out=magnitude)
    found = (magnitude >= least).nonzero()[0]  # k of them at least: one in every group that was taken
    if found.size > k:
        found = found[_cut(magnitude[found], k)[0]]
    inner = found[: np.searchsorted(found, rows.size * size)] if whole < values.size else found
    inside = rows[inner // size] * size + inner % size
    return inside if inner.size == found.size else np.append(inside, found[inner.size :] + (whole - rows.size * size))


def _cut(magnitude: Array, k: int) -> tuple[Positions, Any]:
    """Positions of the k largest, ascending, ties to the lowest; and the least of them."""
    if k >= magnitude.size:
        return np.arange(magnitude.size), 0.0
    least = np.partition(magnitude, magnitude.size - k)[magnitude.size - k]
    found = (magnitude >= least).nonzero()[0]
    if found.size > k:  # ties at the edge: the last of them are too many
        tied = (magnitude[found] == least).nonzero()[0]
        found = np.delete(found, tied[tied.size - (found.size - k) :])
    return found, least


def top_k_by_keys(values: Tensor, k: int, size: int, maxima: Tensor | None) -> Tensor:
    """The same on any device without a shape that depends on data, which a GPU would have to be waited for."""
    if maxima is None or size == 1:
        return cut_by_keys(values.abs(), k)
    rows = cut_by_keys(maxima, k)
    whole, inner = maxima.numel() * size, rows.numel() * size
    candidates = values[:whole].view(-1, size).index_select(0, rows).flatten()
    found = cut_by_keys(torch.cat([candidates, values[whole:]]).abs(), k)
    inside = rows[(found // size).clamp(max=rows.numel() - 1)] * size + found % size
    return torch.where(found < inner, inside, found + (whole - inner))


def cut_by_keys(magnitude: Tensor, k: int) -> Tensor:
    """Positions of the k largest, ascending, ties to the lowest: fp32 magnitudes order as their bits do, and the
    position behind them makes every key unique."""
    if k >= magnitude.numel():
        return torch.arange(magnitude.numel(), device=magnitude.device)
    bits = magnitude.float().view(torch.int32).to(torch.int64)
    back = torch.arange(magnitude.numel() - 1, -1, -1, device=magnitude.device)
    return torch.topk((bits << 32) | back, k, sorted=False).indices.sort().values
