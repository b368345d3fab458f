"""Digests of tensors: bytes, by tensor, order-sensitive.

Bytes and not values, because NaN differs from itself and -0.0 equals 0.0; no XOR, which is blind to permutation and
to equal pairs (`torch.hash_tensor` finds `ones(4)` equal to `zeros(4)`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def tensor_digest(tensor: Tensor) -> str:
    """32 hex digits that depend on dtype, shape and every byte."""
    cpu = tensor.detach().to("cpu").contiguous()
    digest = hashlib.blake2b(f"{cpu.dtype} {tuple(cpu.shape)} ".encode(), digest_size=16)
    if cpu.numel():
        digest.update(cpu.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The digest of every tensor, by name."""
    return {name: tensor_digest(tensor) for name, tensor in sorted(tensors.items())}


def combine(parts: Mapping[str, str]) -> str:
    """One digest (32 hex digits) of named digests."""
    text = "\n".join(f"{name} {part}" for name, part in sorted(parts.items()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def differences(by_worker: Sequence[Mapping[str, str]]) -> list[str]:
    """In words, which named parts differ between workers and who stands apart from the majority. Empty: all equal."""
    found = []
    for name in sorted(set().union(*by_worker)):
        values = [digests_of.get(name, "missing") for digests_of in by_worker]
        common = max(set(values), key=lambda value: (values.count(value), -values.index(value)))
        apart = [str(rank) for rank, value in enumerate(values) if value != common]
        if apart:
            found.append(f"'{name}' on worker {', '.join(apart)} of {len(values)}")
    return found
