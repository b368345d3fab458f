"""One index space for all trained parameters: their concatenation by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """One parameter's place in the index space: positions offset to offset + numel."""

    name: str
    shape: tuple[int, ...]
    offset: int
    numel: int
    sparse: bool

    def of(self, flat: Tensor) -> Tensor:
        """The parameter's part of a flat vector, as a view of the parameter's shape."""
        return flat[self.offset : self.offset + self.numel].view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in the index space, and which of them are sent sparsely.

    State is keyed by parameter *name*, never by bucket (DDP rebuilds buckets: pytorch#48670, #49418). Tensors with
    fewer than two dimensions and those below `min_numel` are dense: they travel whole, inside the message.
    """

    segments: tuple[Segment, ...]

    @staticmethod
    def of(named: Iterable[tuple[str, Tensor]], min_numel: int) -> Layout:
        """The layout of named parameters, whatever order they come in. Empty tensors are left out."""
        segments, offset = [], 0
        for name, tensor in sorted(named, key=lambda item: item[0]):
            numel = tensor.numel()
            if numel:
                sparse = tensor.dim() >= 2 and numel >= min_numel
                segments.append(Segment(name, tuple(tensor.shape), offset, numel, sparse))
                offset += numel
        return Layout(tuple(segments))

    @cached_property
    def numel(self) -> int:
        return sum(segment.numel for segment in self.segments)

    @cached_property
    def sparse(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.sparse)

    @cached_property
    def dense_positions(self) -> Tensor:
        """int64[dense_numel]: positions of the dense tensors' elements, ascending."""
        parts = [torch.arange(s.offset, s.offset + s.numel) for s in self.segments if not s.sparse]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    @cached_property
    def dense_numel(self) -> int:
        return sum(segment.numel for segment in self.segments if not segment.sparse)

    def entries(self, density: float) -> int:
        """The most entries a sparse message holds: the sum of every tensor's k."""
        return sum(count(segment.numel, density) for segment in self.sparse)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Every parameter's part of a flat vector, by name."""
        return {segment.name: segment.of(flat) for segment in self.segments}

    def name_at(self, position: int) -> str:
        """The name of the parameter that a position belongs to."""
        return next(s.name for s in self.segments if s.offset <= position < s.offset + s.numel)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that are equal where names, shapes and classes are."""
        text = repr([(s.name, s.shape, s.sparse) for s in self.segments])
        return hashlib.sha256(text.encode()).digest()


def count(numel: int, density: float) -> int:
    """k = max(1, round(density * numel)): how many entries of a tensor are sent."""
    return max(1, round(density * numel))
