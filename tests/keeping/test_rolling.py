"""The rolling snapshot: what a view may still ask for is there (R9), and no more; damage is passed over and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from elastic_dgc.errors import MessageError, UsageError
from elastic_dgc.keeping.piece import Piece, buffers_piece, chunk_piece, unpack_piece
from elastic_dgc.keeping.rolling import Fit, RollingCopy, choose_chunks, spans

NUMEL = 11


def piece(tag: int, count: int, momentum: bool = True) -> Piece:
    """The chunk whose turn it is, with numbers that tell tag and place."""
    low, high = spans(NUMEL, count)[tag % count]
    v = torch.arange(low, high) + 100.0 * tag
    return chunk_piece("run", 1, 2, tag, tag % count, -v if momentum else None, v)


def buffers(tag: int) -> Piece:
    return buffers_piece("run", 1, 2, tag, {"mean": torch.full((2, 2), float(tag)), "seen": torch.tensor(tag)})


def put(copy: RollingCopy, tag: int, count: int) -> None:
    if tag % count == 0:
        assert copy.put(buffers(tag))
    assert copy.put(piece(tag, count))


@given(numel=st.integers(1, 200), chunks=st.integers(1, 40))
@examples(max_examples=50, deadline=None)
def test_spans_are_all_positions_once(numel: int, chunks: int) -> None:
    found = spans(numel, chunks)
    assert [i for low, high in found for i in range(low, high)] == list(range(numel))
    assert len(found) == chunks
    assert max(high - low for low, high in found) - min(high - low for low, high in found) <= 1


@given(
    numel=st.integers(1, 10**8), momentum=st.booleans(), step_s=st.floats(0.001, 10), granted=st.floats(1, 1e10),
    most=st.integers(1, 500),
)  # fmt: skip
@examples(max_examples=200, deadline=None)
def test_as_few_chunks_as_the_grant_allows_and_never_more_than_the_replay_does(
    numel: int, momentum: bool, step_s: float, granted: float, most: int
) -> None:
    found = choose_chunks(numel, momentum, step_s, granted, most)
    round_bytes = 4 * numel * (1 + momentum)
    assert 1 <= found.count <= numel
    assert found.replay_steps == 2 * found.count - 1 <= most
    assert found.needed_bytes_per_s == pytest.approx(round_bytes / found.count / step_s)
    assert found.granted == (found.needed_bytes_per_s <= granted)
    if found.granted:
        assert found.count == 1 or round_bytes / (found.count - 1) / step_s > granted
    else:
        assert found.count == numel or 2 * (found.count + 1) - 1 > most
        assert choose_chunks(numel, momentum, step_s, found.needed_bytes_per_s * 1.001, most).granted
    for wrong in ({"step_s": 0.0}, {"granted_bytes_per_s": -1.0}, {"max_replay_steps": 0}):
        fields: dict[str, Any] = {
            "numel": 5, "momentum": True, "step_s": 1.0, "granted_bytes_per_s": 1.0, "max_replay_steps": 9, **wrong,
        }  # fmt: skip
        with pytest.raises(UsageError, match=next(iter(wrong))):
            choose_chunks(**fields)


@given(
    count=st.integers(1, 5), until=st.integers(0, 22), lost=st.sets(st.integers(0, 22)),
    lost_buffers=st.sets(st.integers(0, 5)), settled=st.lists(st.integers(0, 2), min_size=23, max_size=23),
)  # fmt: skip
@examples(max_examples=120, deadline=None)
def test_whatever_a_view_may_be_closed_at_fits_as_if_nothing_was_ever_dropped(
    count: int, until: int, lost: set[int], lost_buffers: set[int], settled: list[int]
) -> None:
    copy, chunks, rounds, proved = RollingCopy(count), set(), set(), 0
    for tag in range(until + 1):
        if tag % count == 0 and tag // count not in lost_buffers:
            rounds.add(tag)
            assert copy.put(buffers(tag))
            proved = max(proved, tag - 1)
        if tag not in lost:
            chunks.add(tag)
            assert copy.put(piece(tag, count))
            proved = max(proved, tag - 1)
        if settled[tag]:  # a vote that returned: up to here, or one less
            proved = max(proved, tag + 1 - settled[tag])
            copy.settle(tag + 1 - settled[tag])
        vectors, whole = 4 * 2 * NUMEL, len(buffers(0).payload)
        assert copy.size_bytes <= 2 * (vectors + whole)
        assert copy.newest_tag == max(chunks, default=-1)
        for closed_at in {proved, (proved + tag) // 2, tag}:
            fit = copy.fit(closed_at)
            tags = [max((t for t in chunks if t <= closed_at and t % count == i), default=-1) for i in range(count)]
            start = max((t for t in rounds if t <= min(tags)), default=-1)
            if not lost and not lost_buffers:
                assert (fit is not None) == (start >= 0)
            if fit is None:
                continue
            assert [chunk.tag for chunk in fit.chunks] == tags
            assert fit.start == start
            assert torch.equal(fit.buffers["seen"], torch.tensor(fit.start))
            for chunk in fit.chunks:
                assert torch.equal(chunk.v, torch.arange(chunk.low, chunk.high) + 100.0 * chunk.tag)
                assert torch.equal(chunk.u, -chunk.v)
    if not lost and not lost_buffers and count - 1 <= until:
        assert copy.fit(until) is not None


def test_a_chunk_that_is_lost_is_made_up_for_by_its_next() -> None:
    """Chunk 2 does not arrive in two rounds: with the buffers of the last two rounds nothing fits from 8 to 13."""
    copy, starts = RollingCopy(4), []
    for tag in range(16):
        if tag not in (6, 10):
            put(copy, tag, 4)
        fit = copy.fit(tag)
        starts.append(None if fit is None else fit.start)
    assert starts == [None] * 3 + [0] * 5 + [None] * 6 + [8, 12]


def test_what_is_damaged_is_passed_over_and_named() -> None:
    copy = RollingCopy(3)
    for tag in range(9):
        put(copy, tag, 3)
    assert copy.fit(8).damaged == ()

    def damage(kept: list[Piece]) -> None:
        kept[-1] = replace(kept[-1], payload=b"\xff" + kept[-1].payload[1:])

    damage(copy._chunks[2])  # tag 8, whose predecessor 5 may still be asked for
    fit = copy.fit(8)
    assert (fit.start, [chunk.tag for chunk in fit.chunks]) == (3, [6, 7, 5])
    assert fit.damaged == copy.damaged == ("chunk 2 of virtual worker 2 at tag 8",)
    damage(copy._buffers)  # 6, which is not needed here
    assert copy.fit(8).damaged == fit.damaged
    copy.settle(8)
    assert copy.fit(8) is None
    assert copy.damaged == fit.damaged
    put(copy, 11, 3)
    assert copy.fit(11) is None
    assert copy.damaged == ("the buffers of virtual worker 2 at tag 6",)


def test_old_and_odd_pieces() -> None:
    copy = RollingCopy(3)
    for tag in range(5):
        put(copy, tag, 3)
    assert not copy.put(piece(1, 3))
    assert copy.put(piece(4, 3))  # sent again
    assert [chunk.tag for chunk in copy.fit(4).chunks] == [3, 4, 2]
    for odd in (replace(piece(4, 3), index=2), replace(piece(4, 3), index=3), replace(buffers(3), tag=4)):
        with pytest.raises(MessageError, match="it is the turn of 1"):
            copy.put(odd)
    made_in = piece(4, 3).view
    copy.forget_after(3, made_in)  # announced again: what this view has made stays
    assert copy.newest_tag == 4
    copy.forget_after(3, made_in + 1)
    assert copy.newest_tag == 3
    assert [chunk.tag for chunk in copy.fit(9).chunks] == [3, 1, 2]


@given(
    tag=st.integers(0, 50), momentum=st.booleans(), whole=st.booleans(), at=st.integers(0, 10**6),
    bit=st.integers(0, 7), cut=st.integers(1, 40),
)  # fmt: skip
@examples(max_examples=80, deadline=None)
def test_a_piece_comes_back_as_it_was_or_not_at_all(
    tag: int, momentum: bool, whole: bool, at: int, bit: int, cut: int
) -> None:
    made = buffers(tag) if whole else piece(tag, 4, momentum)
    packed = made.pack()
    assert unpack_piece(packed, "run") == unpack_piece(memoryview(packed)) == made
    flipped = bytearray(packed)
    flipped[at % len(packed)] ^= 1 << bit
    for damaged in (bytes(flipped), packed[:-cut], packed + b"x" * cut, b""):
        with pytest.raises(MessageError):
            unpack_piece(damaged)
    with pytest.raises(MessageError, match="of run 'run', not of 'other'"):
        unpack_piece(packed, "other")
    with pytest.raises(MessageError, match="where buffers belong" if not whole else "no chunk of u and v"):
        made.vectors() if whole else made.buffers()


def test_a_fit_travels_as_its_pieces() -> None:
    copy = RollingCopy(3)
    for tag in range(7):
        put(copy, tag, 3)
    fit = copy.fit(6)
    there = Fit.of([bytearray(one) for one in fit.pieces], "run")
    assert there.start == fit.start == 3
    assert [(c.tag, c.low, c.high) for c in there.chunks] == [(6, 0, 3), (4, 3, 7), (5, 7, 11)]
    for odd in (fit.pieces[1:], (*fit.pieces[:2], fit.pieces[3]), fit.pieces[:1], (buffers(6).pack(), *fit.pieces[1:])):
        with pytest.raises(MessageError, match=r"every chunk|no snapshot of one"):
            Fit.of(odd)


def test_vectors_that_are_not_alike_are_no_chunk() -> None:
    for u, v in ((torch.zeros(2), torch.zeros(3)), (None, torch.zeros(3).half()), (None, torch.zeros(1, 3))):
        with pytest.raises(ValueError, match="fp32 vectors of one size"):
            chunk_piece("run", 1, 2, 0, 0, u, v)
