"""The sum over all virtual workers: a vector that a sparse step neither clears nor reads as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elastic_dgc.compression.dgc import add_message
from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import Message


class Total:
    """fp32[numel], the sum of the last attempt. `touched`: the positions that may not be zero, with repetitions, or
    None where all of them may."""

    def __init__(self, numel: int, device: torch.device) -> None:
        self._flat = torch.zeros(numel, device=device)
        self.touched: Tensor | None = torch.empty(0, dtype=torch.int64, device=device)

    @property
    def flat(self) -> Tensor:
        """The sum, fp32[numel]."""
        return self._flat

    def add_up(self, layout: Layout, messages: Sequence[Message]) -> Total:
        """Add up messages one after the other, in the order given."""
        if self.touched is None:
            self._flat.zero_()
        else:
            self._flat.index_fill_(0, self.touched, 0.0)
        device, dense = self._flat.device, layout.dense_numel
        positions = [one.positions[dense:].to(device) for one in messages]
        self.touched = torch.cat([layout.dense_positions_on(device), *positions])
        whole = self._flat[:dense].zero_()
        for one, place in zip(messages, positions, strict=True):
            values = one.values.to(device)
            whole += values[:dense]
            add_message(self._flat, place, values[dense:])
        return self

    def take(self, whole: Tensor) -> Total:
        """Let the sum be this vector, which is given away."""
        self._flat, self.touched = whole, None
        return self
