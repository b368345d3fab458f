"""Owned state as bytes and back, with the tag that says of which attempt it is."""

from __future__ import annotations

import torch

from elastic_dgc.errors import MessageError
from elastic_dgc.keeping import serialize
from elastic_dgc.keeping.rolling import Fit
from elastic_dgc.step.replay import Chunk
from elastic_dgc.step.state import OwnedState


def pack_owned(state: OwnedState) -> bytes:
    """A virtual worker's whole owned state with its tag."""
    tensors, values = state.export()
    return serialize.pack(tensors, {**values, "tag": state.tag})


def load_owned(state: OwnedState, packed: bytes) -> int:
    """Take over what `pack_owned` gave. Returns its tag. Raises `MessageError` on anything else."""
    tensors, values = serialize.unpack(packed)
    state.load(tensors, values)
    tag = values.get("tag")
    if not isinstance(tag, int):
        raise MessageError(f"state of virtual worker {state.virtual_worker} has tag {tag!r}")
    state.tag = tag
    return tag


def whole_chunk(state: OwnedState) -> Chunk:
    """All of u and v as one chunk of a replay."""
    u = state.u.clone() if state.u is not None else None
    return Chunk(state.tag, 0, state.v.numel(), u, state.v.clone())


@torch.no_grad()
def merge(state: OwnedState, fit: Fit) -> None:
    """The chunks of a fit, each of its own tag, into the current u and v, with the buffers: a stale state."""
    for chunk in fit.chunks:
        state.v[chunk.low : chunk.high].copy_(chunk.v)
        if state.u is not None and chunk.u is not None:
            state.u[chunk.low : chunk.high].copy_(chunk.u)
    for name, value in fit.buffers.items():
        state.buffers[name].copy_(value)
