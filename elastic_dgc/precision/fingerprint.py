"""Digests of tensors where they are: integers that depend on every bit and its place, cheap enough for every check.

A tensor's bytes are read as integer words and summed with odd 64-bit weights that depend on the position, modulo
2**64, with two sets of weights: 128 bits. Integer sums have no rounding, so a GPU gives what a CPU gives, whatever the
order. An odd weight lets no flipped bit vanish; words that change places are seen by the difference of their weights
(a plain sum, or an XOR, is blind to that). Words have at most 32 bits, or two sign bits of 64 would cancel out.

These find that something differs; `precision.digest` says what, by a cryptographic hash of the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from elastic_dgc.precision.digest import combine

BLOCK = 4096  # words; a word's weight is that of its place in its block, times that of the block
CHUNK = 12 * BLOCK  # words at a time, at least: 768 KiB of scratch, which stay in a CPU's cache
CHUNKS = 400  # of a tensor, at most: a GPU has enough to do at a time, for 1 % of the tensor as scratch

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}
_MASK = 2**64 - 1


@torch.no_grad()
def fingerprints(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """By name a text of dtype, shape and 32 hex digits, equal where these and every byte are equal, on any device.

    Each device is waited for once, however many tensors it holds. Nothing is changed.
    """
    by_device: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensor in sorted(tensors.items()):
        by_device.setdefault(tensor.device, {})[name] = _words(tensor)
    found = {}
    for device, words in by_device.items():
        scratch = torch.empty(2, max(_chunk(one.numel()) for one in words.values()), dtype=torch.int64, device=device)
        sums = torch.stack([_sums(one, scratch) for one in words.values()])
        for name, pair in zip(words, sums.tolist(), strict=True):
            digits = "".join(f"{value & _MASK:016x}" for value in pair)
            found[name] = f"{tensors[name].dtype} {tuple(tensors[name].shape)} {digits}"
    return found


def fingerprint(tensors: Mapping[str, Tensor], more: str = "") -> str:
    """32 hex digits of all tensors, by name, and of a text."""
    return combine({**fingerprints(tensors), "": more})


def _words(tensor: Tensor) -> Tensor:
    """The bytes as integers, flat: a view, but of a tensor that does not lie in one piece (state does) a copy."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return flat.view(_WORDS[flat.element_size()])


def _chunk(words: int) -> int:
    """Words at a time: whole blocks."""
    return max(CHUNK, words // CHUNKS) // BLOCK * BLOCK


def _sums(words: Tensor, scratch: Tensor) -> Tensor:
    """The two weighted sums [2], int64, on the words' device. `scratch` [2, at least _chunk] int64 is overwritten."""
    places, whole = _place_weights(words.device), words.numel() // BLOCK
    blocks = _block_weights(words.device, 1 << whole.bit_length())
    rest = words[whole * BLOCK :].to(torch.int64)
    total = (rest * places[:, : rest.numel()]).sum(-1) * blocks[:, whole]
    if not whole:
        return total
    of_blocks = torch.empty(2, whole, dtype=torch.int64, device=words.device)
    rows = _chunk(words.numel()) // BLOCK
    for first in range(0, whole, rows):
        last = min(first + rows, whole)
        wide, product = (one[: (last - first) * BLOCK].view(-1, BLOCK) for one in scratch)
        wide.copy_(words[first * BLOCK : last * BLOCK].view(-1, BLOCK))
        for stream in range(2):
            torch.mul(wide, places[stream], out=product)
            torch.sum(product, -1, out=of_blocks[stream, first:last])
    return total + (of_blocks * blocks[:, :whole]).sum(-1)


def _weights(seed: int, count: int) -> np.ndarray:
    """Odd numbers that look random, a pure function of seed and position (SplitMix64): int64 [2, count]."""
    at = np.arange(1, count + 1, dtype=np.uint64)
    start = np.array([[2 * seed + 1], [2 * seed + 2]], dtype=np.uint64) << np.uint64(40)
    z = (start + at) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) | np.uint64(1)).view(np.int64)


@lru_cache(maxsize=4)
def _place_weights(device: torch.device) -> Tensor:
    return torch.from_numpy(_weights(0, BLOCK)).to(device)


@lru_cache(maxsize=32)
def _block_weights(device: torch.device, count: int) -> Tensor:
    return torch.from_numpy(_weights(1, count)).to(device)
