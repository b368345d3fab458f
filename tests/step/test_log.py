"""The log has no gap, keeps to its budget, says what it covers, and damaged entries are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from elastic_dgc.errors import MessageError
from elastic_dgc.step.log import AttemptLog, Entry

some_bytes = st.binary(max_size=20)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    count = draw(st.integers(1, 4))
    rows = tuple(draw(st.lists(some_bytes, min_size=count, max_size=count)))
    messages = draw(st.none() | st.tuples(*[some_bytes] * count))
    total = draw(st.none() | some_bytes) if messages is None else None
    told = [None, False] if messages is None and total is None else [None, False, True]
    return Entry(draw(st.integers(0, 2**40)), rows, messages, total, draw(st.sampled_from(told)))


@given(entry=entries(), at=st.integers(0, 10**6), bit=st.integers(0, 7), cut=st.integers(1, 30))
@examples(max_examples=150, deadline=None)
def test_an_entry_comes_back_as_it_was_or_not_at_all(entry: Entry, at: int, bit: int, cut: int) -> None:
    packed = entry.pack()
    assert Entry.unpack(packed) == Entry.unpack(memoryview(packed)) == entry
    assert entry.size_bytes == len(packed)
    flipped = bytearray(packed)
    flipped[at % len(packed)] ^= 1 << bit
    for damaged in (bytes(flipped), packed[:-cut], packed + b"x" * cut, b""):
        with pytest.raises(MessageError):
            Entry.unpack(damaged)


@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12), budget=st.integers(0, 900))
@examples(max_examples=100, deadline=None)
def test_the_budget_drops_the_oldest_but_never_the_newest(sizes: list[int], budget: int) -> None:
    log, added = AttemptLog(budget), []
    for i, size in enumerate(sizes):
        added.append(Entry(7 + i, (b"r",), (b"m" * size,), committed=True))
        log.add(added[-1])
        assert log.newest == added[-1]
        kept = [entry for entry in added if log.covers(entry.attempt, entry.attempt + 1)]
        assert kept == added[len(added) - len(kept) :]
        assert log.bytes == sum(entry.size_bytes for entry in kept)
        assert len(kept) == 1 or log.bytes <= budget
        one_more = added[len(added) - len(kept) - 1 :]
        assert len(kept) == len(added) or sum(entry.size_bytes for entry in one_more) > budget
    low, end = kept[0].attempt, kept[-1].attempt + 1
    assert log.covers(low, end)
    assert log.covers(5, 5)
    assert not log.covers(low - 1, end)
    assert not log.covers(low, end + 1)
    assert log.since(low) == tuple(kept)
    assert log.since(end) == ()
    with pytest.raises(ValueError, match="not in the log any more"):
        log.since(low - 1)


def test_attempts_follow_one_another_and_may_be_forgotten() -> None:
    log = AttemptLog(10**6)
    assert log.newest is None
    assert not log.covers(0, 1)
    for attempt in range(4, 9):
        log.add(Entry(attempt, (b"r",)))
    for wrong in (8, 10, 3):
        with pytest.raises(ValueError, match="ends with attempt 8"):
            log.add(Entry(wrong, (b"r",)))
    log.forget(7)
    assert [entry.attempt for entry in log.since(7)] == [7, 8]
    assert not log.covers(6, 8)
    log.forget(100)
    assert log.newest == Entry(8, (b"r",))
    assert log.bytes == log.newest.size_bytes


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": (b"m",)},
        {"messages": (b"m", b"m"), "total": b"t"},
        {"committed": True},
    ],
)
def test_an_entry_that_contradicts_itself_is_not_made(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="attempt 3"):
        Entry(3, (b"r", b"r"), **fields)
