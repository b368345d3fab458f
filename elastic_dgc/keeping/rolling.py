"""The rolling snapshot: a copy of a virtual worker's owned state at a buddy on another node, a chunk with every step.

Copying u and v whole would take as long as a dense step. So the copy of tag s (s attempts are decided in it) brings
chunk s mod S only, and forward's buffers, which are small, whole at the start of every round of S. No two chunks are
of one moment; a replay that begins at a round's start takes each one in at its own tag.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from elastic_dgc.errors import MessageError, UsageError
from elastic_dgc.exchange.ask import Payload
from elastic_dgc.keeping.piece import Piece, buffers_piece, chunk_piece, unpack_piece
from elastic_dgc.step.replay import Chunk


def spans(numel: int, chunks: int) -> list[tuple[int, int]]:
    """What positions [low, high) each of the chunks has: all of them, in order, equal but for one."""
    bounds = [numel * i // chunks for i in range(chunks + 1)]
    return list(itertools.pairwise(bounds))


@dataclass(frozen=True)
class Chunks:
    """`count` is S. `replay_steps`: the most steps a replay takes then. `needed_bytes_per_s`: what the copies take;
    `granted`: whether that is within the grant. If not, it is the grant that would do."""

    count: int
    replay_steps: int
    granted: bool
    needed_bytes_per_s: float


def choose_chunks(
    numel: int, momentum: bool, step_s: float, granted_bytes_per_s: float, max_replay_steps: int
) -> Chunks:
    """How many chunks u and v (u with `momentum` only) are cut into: as few as the grant allows, for a short replay;
    but never so many that a replay would take more than `max_replay_steps`, grant or not.

    The worst replay begins at the start of the last complete round, of S steps, when all of the next one but its last
    chunk is there: 2 S - 1 steps. Raises `UsageError` on values that are not above 0.
    """
    for name, value in (
        ("numel", numel), ("step_s", step_s), ("granted_bytes_per_s", granted_bytes_per_s),
        ("max_replay_steps", max_replay_steps),
    ):  # fmt: skip
        if not value > 0:
            raise UsageError(f"{name} = {value}: must be above 0")
    round_bytes = 4 * numel * (2 if momentum else 1)
    for_grant = math.ceil(min(round_bytes / (granted_bytes_per_s * step_s), numel))
    for_replay = (max_replay_steps + 1) // 2
    count = max(1, min(for_grant, for_replay, numel))
    needed = round_bytes / (count * step_s)
    return Chunks(count, 2 * count - 1, needed <= granted_bytes_per_s, needed)


@dataclass(frozen=True)
class Fit:
    """What a replay begins with, as packed pieces: the buffers, then all chunks in order. `start`: the tag of the
    buffers, not above that of any chunk. `damaged` names the copies that were passed over."""

    start: int
    pieces: tuple[bytes, ...]
    damaged: tuple[str, ...] = ()

    @staticmethod
    def of(pieces: Sequence[Payload], run: str | None = None) -> Fit:
        """From the pieces of another one, which came over the wire. Raises `MessageError` where they are damaged or no
        whole."""
        found = [unpack_piece(piece, run) for piece in pieces]
        if [one.index for one in found] != list(range(-1, len(found) - 1)) or len(found) < 2:
            raise MessageError(f"{len(found)} pieces of a snapshot are not the buffers and every chunk")
        start, whose = found[0].tag, found[0].virtual_worker
        for one in found[1:]:
            if one.tag < start or one.virtual_worker != whose:
                raise MessageError(f"{one.name} beside {found[0].name}: no snapshot of one virtual worker")
        return Fit(start, tuple(bytes(piece) for piece in pieces))

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Forward's buffers at `start`, by name."""
        return unpack_piece(self.pieces[0]).buffers()

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks of u and v, each at its own tag."""
        found, low = [], 0
        for data in self.pieces[1:]:
            piece = unpack_piece(data)
            u, v = piece.vectors()
            found.append(Chunk(piece.tag, low, low + v.numel(), u, v))
            low += v.numel()
        return tuple(found)


class RollingCopy:
    """All that a buddy holds of one virtual worker: two copies at most of each chunk, and of the buffers.

    The owner sends pieces, which the buddy's receiver puts here. A copy replaces its predecessor only when it is proved
    that everyone has decided what is in it (R9): until then a view may be closed at an attempt to which only the
    predecessor belongs. Memory: once u, v and the buffers, and twice while the proof is on its way.
    """

    def __init__(self, chunks: int) -> None:
        self.damaged: tuple[str, ...] = ()  # what the last `fit` passed over, whether it found enough or not
        self._chunks: list[list[Piece]] = [[] for _ in range(chunks)]  # by index, oldest first
        self._buffers: list[Piece] = []

    @property
    def newest_tag(self) -> int:
        """The highest tag of a chunk; -1 without any."""
        return max((kept[-1].tag for kept in self._chunks if kept), default=-1)

    @property
    def start(self) -> int | None:
        """The attempt that a replay would begin at, for a view closed now; None while something is missing. Says
        nothing of damage, which `fit` looks for."""
        floor = min((kept[-1].tag if kept else -1 for kept in self._chunks), default=-1)
        return max((one.tag for one in self._buffers if one.tag <= floor), default=None)

    @property
    def size_bytes(self) -> int:
        """What is held."""
        return sum(len(piece.payload) for kept in (*self._chunks, self._buffers) for piece in kept)

    def put(self, piece: Piece) -> bool:
        """Take a piece in; a second one of the same tag takes the first one's place. False, and nothing is changed,
        where something newer is here. Raises `MessageError` where its tag is not the turn of its chunk."""
        kept = self._place(piece)
        if kept and piece.tag < kept[-1].tag:
            return False
        if kept and piece.tag == kept[-1].tag:
            kept.pop()
        # Who has tag s has seen the vote of attempt s - 1 return, to which everyone came with s - 1 decided.
        self.settle(piece.tag - 1)
        kept.append(piece)
        del self._buffers[:-2]  # where a chunk was lost on the way; nobody has what is shared of older rounds either
        return True

    def put_chunk(self, tag: int, index: int, u: Tensor | None, v: Tensor, virtual_worker: int = -1) -> bool:
        """As `put`, of vectors that are in this process: fp32[n], copied."""
        return self.put(chunk_piece("", 0, virtual_worker, tag, index, u, v))

    def put_buffers(self, tag: int, tensors: Mapping[str, Tensor], virtual_worker: int = -1) -> bool:
        """As `put`, of buffers that are in this process; copied."""
        return self.put(buffers_piece("", 0, virtual_worker, tag, tensors))

    def _place(self, piece: Piece) -> list[Piece]:
        count = len(self._chunks)
        if piece.tag < 0 or not -1 <= piece.index < count or piece.tag % count != max(piece.index, 0):
            raise MessageError(f"{piece.name}: with {count} chunks it is the turn of {piece.tag % count}")
        return self._chunks[piece.index] if piece.index >= 0 else self._buffers

    def settle(self, decided: int) -> None:
        """`decided` attempts are proved to be decided everywhere: drop what has a successor of up to there."""
        for kept in self._chunks:
            while len(kept) > 1 and kept[1].tag <= decided:
                del kept[0]
        floor = self._floor
        while floor is not None and len(self._buffers) > 1 and self._buffers[1].tag <= floor:
            del self._buffers[0]

    def forget_after(self, closed_at: int, view: int) -> None:
        """This view begins at this many attempts: copies of more, made before it, are of a history that did not go
        on."""
        for kept in (*self._chunks, self._buffers):
            while kept and kept[-1].tag > closed_at and kept[-1].view < view:
                kept.pop()

    def fit(self, closed_at: int) -> Fit | None:
        """The newest intact chunks of a tag up to `closed_at`, and the newest intact buffers that are not newer than
        any of them; None if something is missing. Changes nothing but `damaged`."""
        damaged: list[str] = []
        chunks = [self._newest(kept, closed_at, damaged) for kept in self._chunks]
        floor = min(-1 if chunk is None else chunk.tag for chunk in chunks)
        buffers = self._newest(self._buffers, floor, damaged)
        self.damaged = tuple(damaged)
        pieces = tuple(piece.pack() for piece in (buffers, *chunks) if piece is not None)
        return Fit(buffers.tag, pieces, self.damaged) if buffers is not None else None

    @staticmethod
    def _newest(kept: Sequence[Piece], limit: int, damaged: list[str]) -> Piece | None:
        """The newest intact one up to a tag; names of those passed over go to `damaged`."""
        for piece in reversed(kept):
            if piece.tag <= limit:
                if piece.intact:
                    return piece
                damaged.append(piece.name)
        return None

    @property
    def _floor(self) -> int | None:
        """The least tag that a chunk may be taken from; None while not every chunk is here."""
        return min(kept[0].tag for kept in self._chunks) if all(self._chunks) else None
