"""Digests of tensors: bytes, by tensor, order-sensitive.

Bytes and not values, because NaN differs from itself and -0.0 equals 0.0; no XOR, which is blind to permutation and
to equal pairs (`torch.hash_tensor` finds `ones(4)` equal to `zeros(4)`). These are for reports and for the last word;
`precision.fingerprint` has the cheap ones that are taken again and again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Apart:
    """A part of the state that is not the same on all workers. `groups`: the workers that hold the same, the largest
    group first, among equally large ones that of the lowest worker."""

    name: str
    groups: tuple[tuple[int, ...], ...]

    @property
    def workers(self) -> int:
        return sum(len(group) for group in self.groups)

    @property
    def has_majority(self) -> bool:
        """Whether more than half of the workers hold the same."""
        return 2 * len(self.groups[0]) > self.workers

    @property
    def apart(self) -> tuple[int, ...]:
        """The workers outside the first group."""
        return tuple(sorted(worker for group in self.groups[1:] for worker in group))

    def __str__(self) -> str:
        """'parameter/w' on worker 2 of 4; without a majority, who differs from whom."""
        if self.has_majority:
            return f"'{self.name}' on {named_workers(self.apart)} of {self.workers}"
        if self.workers == 2:
            return f"'{self.name}' on workers 0 and 1 of 2"
        if len(self.groups) == self.workers:
            return f"'{self.name}' on all {self.workers} workers, no two alike"
        sides = " against ".join(named_workers(group) for group in self.groups)
        return f"'{self.name}' on {sides} of {self.workers}"


def differences(by_worker: Sequence[Mapping[str, str]]) -> list[Apart]:
    """The named parts that differ between workers, in order of name; one that a worker lacks differs. Empty: all
    equal."""
    found = []
    for name in sorted(set().union(*by_worker)):
        groups: dict[str | None, list[int]] = {}
        for worker, parts in enumerate(by_worker):
            groups.setdefault(parts.get(name), []).append(worker)
        if len(groups) > 1:
            largest_first = sorted(groups.values(), key=lambda group: (-len(group), group))
            found.append(Apart(name, tuple(tuple(group) for group in largest_first)))
    return found


def count_different(one: Tensor, other: Tensor) -> int:
    """How many values differ in their bytes between two tensors of one shape and dtype."""
    pair = [t.detach().to("cpu").contiguous().view(-1, 1).view(torch.uint8) for t in (one, other)]
    return int((pair[0] != pair[1]).any(-1).sum())


def named_workers(ranks: Sequence[int]) -> str:
    """'worker 2', 'workers 0, 1 and 3'."""
    *most, last = (str(rank) for rank in ranks)
    return f"workers {', '.join(most)} and {last}" if most else f"worker {last}"
