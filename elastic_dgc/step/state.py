"""The two structures that hold all state of a run, and nothing else does.

*Shared* state is equal on all workers; *owned* state belongs to one virtual worker. Checkpoint, hand-over and joiner
use these two, each as (tensors by name, fields that are JSON).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from elastic_dgc.compression.layout import Layout
from elastic_dgc.errors import MessageError

Exported = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass
class Counters:
    """The numbers of shared state. `attempt` keys data and dropout; `applied` keys learning rate, density, schedule."""

    attempt: int = 0
    applied: int = 0
    skipped: int = 0
    skips_in_a_row: int = 0
    hopeless_in_a_row: int = 0  # of these skips, those that no smaller loss scale could have avoided
    healed: int = 0  # parts of the state that were put back after a fault of memory
    loss_scale: float = 1.0
    scale_tracker: int = 0  # applied attempts since the scale last moved
    samples: int = 0
    upload_bytes: int = 0
    dense_bytes: int = 0
    views: list[list[int]] = field(default_factory=list)  # [view, first attempt], in order
    evaluations: list[dict[str, float]] = field(default_factory=list)

    def export(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @staticmethod
    def load(values: Mapping[str, Any]) -> Counters:
        return Counters(**{one.name: values[one.name] for one in fields(Counters) if one.name in values})


class OwnedState:
    """What belongs to one virtual worker: u, v (fp32, unscaled, flat in the layout's order) and forward's buffers.

    Each exists twice: an attempt writes the *other* copy, and `flip` makes it the current one. Until then nothing has
    changed, so an attempt that is given up needs no undo. With momentum that is 4 fp32 values for each parameter, and
    there is no fifth for the gradient: it waits in the other v, where the accumulation reads it block by block, or, of
    the last virtual worker, where backward left it.
    """

    def __init__(
        self, virtual_worker: int, layout: Layout, buffers: Mapping[str, Tensor], momentum: bool, device: torch.device
    ) -> None:
        """`device` is where u and v live; the buffers stay where they are."""
        self.virtual_worker = virtual_worker
        self._layout = layout

        def pair() -> tuple[Tensor, Tensor]:
            return torch.zeros(layout.numel, device=device), torch.zeros(layout.numel, device=device)

        self._u = pair() if momentum else None
        self._v = pair()
        self._views = tuple(layout.views(one) for one in self._v)
        self._buffers = tuple({n: b.detach().clone() for n, b in buffers.items()} for _ in range(2))
        self._now = 0
        self.tag = 0  # how many attempts are decided in the current copies

    @property
    def u(self) -> Tensor | None:
        return self._u[self._now] if self._u else None

    @property
    def v(self) -> Tensor:
        return self._v[self._now]

    @property
    def buffers(self) -> dict[str, Tensor]:
        return self._buffers[self._now]

    @property
    def other_u(self) -> Tensor | None:
        return self._u[1 - self._now] if self._u else None

    @property
    def other_v(self) -> Tensor:
        return self._v[1 - self._now]

    @property
    def other_v_views(self) -> dict[str, Tensor]:
        """`other_v` by parameter: what backward writes into."""
        return self._views[1 - self._now]

    @property
    def other_buffers(self) -> dict[str, Tensor]:
        return self._buffers[1 - self._now]

    def flip(self, tag: int) -> None:
        """COMMIT: the other copies become the current ones. `tag`: the attempts that are decided in them."""
        self._now, self.tag = 1 - self._now, tag

    def export(self) -> Exported:
        """Tensors `u/<parameter>`, `v/<parameter>`, `buffer/<name>` (views, not copies)."""
        tensors = {f"v/{name}": part for name, part in self._layout.views(self.v).items()}
        if self.u is not None:
            tensors |= {f"u/{name}": part for name, part in self._layout.views(self.u).items()}
        tensors |= {f"buffer/{name}": value for name, value in self.buffers.items()}
        return tensors, {"virtual_worker": self.virtual_worker}

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Take over what `export` gave. Raises `MessageError` on another virtual worker's state or other tensors."""
        if values.get("virtual_worker") != self.virtual_worker:
            raise MessageError(
                f"state of virtual worker {values.get('virtual_worker')} where {self.virtual_worker}'s belongs"
            )
        copy_all(self.export()[0], tensors, f"virtual worker {self.virtual_worker}")


def copy_all(into: Mapping[str, Tensor], tensors: Mapping[str, Tensor], what: str) -> None:
    """Copy tensors by name; names, shapes and dtypes must be the same on both sides, or nothing is changed."""
    if into.keys() != tensors.keys():
        odd = sorted(into.keys() ^ tensors.keys())
        raise MessageError(f"state of {what}: tensors do not match, for example '{odd[0]}'")
    for name, target in into.items():
        if target.shape != tensors[name].shape or target.dtype != tensors[name].dtype:
            raise MessageError(
                f"state of {what}: '{name}' is {tensors[name].dtype} {tuple(tensors[name].shape)}, "
                f"not {target.dtype} {tuple(target.shape)}"
            )
    with torch.no_grad():
        for name, target in into.items():
            target.copy_(tensors[name])
