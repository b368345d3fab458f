"""Notices gradients that were changed between the backward pass and the optimizer's step, by clip_grad_norm_ above all.

What a message took out of the residual must be applied as it is; what clipping cuts off afterwards is lost, and since
an entry carries the gradients of many steps any usual threshold cuts (DGC clips before: `DGC(clip=...)`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import Message

_TOLERANCE = 1e-3  # a scaler's rounding is far below, a clip that matters above


@dataclass(frozen=True)
class Probe:
    """The largest entry of this rank's message, where it lies in its parameter's memory, and the sum that was given."""

    name: str
    parameter: Tensor
    index: int
    given: float
    scale: float

    @staticmethod
    def of(
        own: Message, layout: Layout, parameters: Sequence[Tensor], flat: Sequence[Tensor], scale: float
    ) -> Probe | None:
        """None where there is nothing to look at, or looking would make the host wait for a GPU."""
        if flat[0].device.type != "cpu" or not own.values.numel():
            return None
        position = int(own.positions[int(own.values.abs().argmax())])
        number = next(i for i, s in enumerate(layout.segments) if s.offset <= position < s.offset + s.numel)
        index = position - layout.segments[number].offset
        return Probe(layout.segments[number].name, parameters[number], index, float(flat[number][index]), scale)

    def altered(self) -> bool:
        """Whether the gradient that the optimizer is about to apply is another than the sum. A fused optimizer gets it
        with the loss scale still in it."""
        gradient = self.parameter.grad
        if gradient is None or gradient.stride() != self.parameter.stride():
            return gradient is None
        found = float(gradient.as_strided((gradient.numel(),), (1,), gradient.storage_offset())[self.index])
        return all(abs(found - one) > _TOLERANCE * abs(one) for one in (self.given, self.given / self.scale))

    def words(self) -> str:
        return (
            f"the gradient of {self.name} was changed between backward and optimizer.step() (clip_grad_norm_? "
            f"zero_grad?): what was taken away is lost, since it has left the residual; clip with DGC(clip=...), which "
            f"does it before compression"
        )
