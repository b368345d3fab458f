"""One index space for all trained parameters: their concatenation, those that travel whole first, then by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """One parameter's place in the index space: positions offset to offset + numel.

    `sparse`: so many of its entries are sent as `count` says; otherwise it travels whole. `least_density` and
    `least_count` bound that from below: small tensors have a density of their own, and a floor.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    numel: int
    sparse: bool
    least_density: float = 0.0
    least_count: int = 1

    def count(self, density: float) -> int:
        """k = max(1, round(density * numel)), how many entries are sent; more for a small tensor with a floor."""
        wanted = round(max(density, self.least_density) * self.numel)
        return min(self.numel, max(self.least_count, wanted))

    def of(self, flat: Tensor) -> Tensor:
        """The parameter's part of a flat vector, as a view of the parameter's shape."""
        return flat[self.offset : self.offset + self.numel].view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in the index space, and which of them are sent sparsely.

    State is keyed by parameter *name*, never by bucket (DDP rebuilds buckets: pytorch#48670, #49418). Tensors with
    fewer than two dimensions and those below `min_numel` are small: they travel whole, inside the message, or at a
    density of their own.
    """

    segments: tuple[Segment, ...]

    @staticmethod
    def of(
        named: Iterable[tuple[str, Tensor]], min_numel: int, small_density: float = 1.0, small_floor: int = 16
    ) -> Layout:
        """The layout of named parameters, whatever order they come in. Empty tensors are left out.

        With a `small_density` below 1 small tensors are sparse too: at that density or the schedule's, whichever is
        more, and at least `small_floor` entries each.
        """

        def large(tensor: Tensor) -> bool:
            return tensor.dim() >= 2 and tensor.numel() >= min_numel

        def sparse(tensor: Tensor) -> bool:
            return large(tensor) or small_density < 1

        segments, offset = [], 0
        for name, tensor in sorted(named, key=lambda item: (sparse(item[1]), item[0])):
            numel = tensor.numel()
            if numel:
                least = (0.0, 1) if large(tensor) else (small_density, small_floor)
                segments.append(Segment(name, tuple(tensor.shape), offset, numel, sparse(tensor), *least))
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
        """int64[dense_numel]: positions of the dense tensors' elements, ascending. They come first."""
        return torch.arange(self.dense_numel)

    def dense_positions_on(self, device: torch.device) -> Tensor:
        """The same on a device; copied there once."""
        if device not in self._copies:
            self._copies[device] = self.dense_positions.to(device)
        return self._copies[device]

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor]:
        return {}

    @cached_property
    def dense_numel(self) -> int:
        return sum(segment.numel for segment in self.segments if not segment.sparse)

    def counts(self, density: float) -> dict[int, int]:
        """How many entries of each sparse tensor are sent, by its offset. Counted once for every density."""
        if density not in self._counts:
            self._counts[density] = {segment.offset: segment.count(density) for segment in self.sparse}
        return self._counts[density]

    @cached_property
    def _counts(self) -> dict[float, dict[int, int]]:
        return {}

    def entries(self, density: float) -> int:
        """The most entries a sparse message holds: the sum of every tensor's k."""
        return sum(self.counts(density).values())

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Every parameter's part of a flat vector, by name."""
        return {segment.name: segment.of(flat) for segment in self.segments}

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that are equal where names, shapes and classes are."""
        text = repr([(s.name, s.shape, s.sparse, s.least_density, s.least_count) for s in self.segments])
        return hashlib.sha256(text.encode()).digest()
