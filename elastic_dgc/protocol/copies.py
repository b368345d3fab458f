"""The rolling snapshot on its way to a buddy: a chunk with every attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_dgc.keeping.piece import buffers_piece, chunk_piece
from elastic_dgc.keeping.rolling import spans
from elastic_dgc.protocol.letters import Snapshot
from elastic_dgc.protocol.wait import Out, keeper_of

if TYPE_CHECKING:
    from elastic_dgc.protocol.member import Member


def snapshots(m: Member, settled: int) -> list[Out]:
    """This boundary's chunk of each hosted virtual worker for its buddy, and forward's buffers at a round's start."""
    tag, chunks, view = m.decided, m.keeper.chunks, m.view
    index = tag % chunks
    low, high = spans(m.replica.layout.numel, chunks)[index]
    outs = []
    for k, one in sorted(m.replica.owned.items()):
        buddy = view.buddy(k)
        if buddy is None:
            continue
        u = one.u[low:high] if one.u is not None else None
        pieces = [chunk_piece(m.keeper.run, view.number, k, tag, index, u, one.v[low:high])]
        if index == 0:
            pieces.insert(0, buffers_piece(m.keeper.run, view.number, k, tag, one.buffers))
        outs += [
            Out(keeper_of(buddy), Snapshot(view.number, k, piece.index, settled, piece.pack())) for piece in pieces
        ]
    return outs
