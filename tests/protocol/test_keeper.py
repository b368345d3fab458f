"""A keeper's memory: what it gives, what it refuses, what it frees."""

from __future__ import annotations

import pytest
import torch

from elastic_dgc.compression.layout import Layout
from elastic_dgc.errors import MessageError
from elastic_dgc.keeping.piece import buffers_piece, chunk_piece
from elastic_dgc.membership import control as say
from elastic_dgc.membership.roster import Source, Tier, View, Worker
from elastic_dgc.protocol.bundle import bundle, unbundle
from elastic_dgc.protocol.keeper import Keeper
from elastic_dgc.protocol.letters import Fetch, Given, Kept, Snapshot
from elastic_dgc.protocol.packing import load_owned
from elastic_dgc.step.log import Entry
from elastic_dgc.step.state import OwnedState

A, B = Worker("a", "x"), Worker("b", "y")


def owned(virtual_worker: int = 0, tag: int = 0, value: float = 0.0) -> OwnedState:
    layout = Layout.of([("w", torch.zeros(40, 10))], 1)
    state = OwnedState(virtual_worker, layout, {"mean": torch.full((3,), value)}, True, torch.device("cpu"))
    state.v.fill_(value)
    state.tag = tag
    return state


def keeper(chunks: int = 2) -> tuple[Keeper, list[str]]:
    ended: list[str] = []
    return Keeper("x", "run", 10_000, chunks, ended.append), ended


def entry(attempt: int) -> Entry:
    return Entry(attempt, (b"row",), (b"message" * 10,))


def fetched(here: Keeper, closed_at: int, view: int = 2, rolling: bool = False) -> Given:
    (out,) = here.hear("b", Fetch(view, 0, closed_at, rolling))
    assert isinstance(out.letter, Given)
    return out.letter


def test_the_old_process_is_ended_before_its_memory_is_given_away() -> None:
    here, ended = keeper()
    here.hold(0, "a", owned(tag=5, value=2.0))
    given = fetched(here, 5)
    assert ended == ["a"]
    assert given.payload is not None
    fresh = owned()
    assert load_owned(fresh, given.payload) == 5
    assert bool((fresh.v == 2).all())


def test_a_copy_above_the_closed_attempt_and_an_old_view_are_refused() -> None:
    here, _ = keeper()
    here.hold(0, "a", owned(tag=6))
    assert fetched(here, 5).payload is None
    assert "tag 6, above 5" in fetched(here, 5).reason
    here.hear("coordinator", say.Fence(1, 9, (), ()))
    assert "the past" in fetched(here, 7).reason


def pieces(tag: int, run: str = "run") -> list[bytes]:
    index = tag % 2
    chunk = chunk_piece(run, 1, 0, tag, index, torch.zeros(200), torch.full((200,), float(tag)))
    buffers = [buffers_piece(run, 1, 0, tag, {"mean": torch.zeros(3)})] if index == 0 else []
    return [one.pack() for one in (*buffers, chunk)]


def keep(here: Keeper, tag: int, view: int = 1, run: str = "run") -> list[object]:
    outs = [out for one in pieces(tag, run) for out in here.hear("b", Snapshot(view, 0, tag % 2, tag - 1, one))]
    return [out.letter for out in outs]


def test_a_rolling_copy_is_whole_after_a_round_and_says_so() -> None:
    here, _ = keeper()
    assert fetched(here, 9, rolling=True).payload is None
    assert keep(here, 4) == []
    assert keep(here, 5) == [Kept("x", 0, 4)]
    assert len(unbundle(fetched(here, 5, rolling=True).payload or b"")) == 3
    assert fetched(here, 4, rolling=True).payload is None  # chunk 1 is of a later attempt


def test_a_damaged_or_foreign_piece_or_one_of_an_old_view_changes_nothing() -> None:
    here, _ = keeper()
    keep(here, 4), keep(here, 5)
    damaged = bytearray(pieces(6)[1])
    damaged[-1] ^= 1
    assert here.hear("b", Snapshot(1, 0, 0, 5, bytes(damaged))) == []
    assert keep(here, 6, run="another") == []
    here.hear("coordinator", say.Fence(1, 2, (), ()))
    assert keep(here, 6, view=1) == []
    assert here.refused == 5
    assert here.rolling[0].newest_tag == 5


def test_shared_state_is_given_with_the_log_since_for_two_rounds() -> None:
    here, _ = keeper()
    for attempt in range(12):
        if attempt % 2 == 0:
            here.snapshot(attempt, lambda attempt=attempt: b"state %d" % attempt)  # type: ignore[misc]
        here.decided(entry(attempt), 1)
        here.decided(entry(attempt), 1)  # by another process of the node
    low, high = here.shared_range or (0, 0)
    assert high == 12
    assert low <= 12 - 2 * here.chunks
    parts = here.shared(11, tag=9)
    assert parts is not None
    assert parts[0] == b"state 8"
    assert [Entry.unpack(one).attempt for one in parts[1:]] == [8, 9, 10]
    assert here.shared(5) is None, "what is older than all that may be replayed is freed"


def test_what_is_decided_again_in_a_newer_view_takes_the_place_of_what_did_not_go_on() -> None:
    here, _ = keeper()
    here.learn(0, b"the seed's", ())
    for attempt in range(4):
        here.decided(entry(attempt), 1)
        here.note(attempt + 1, {"evaluations": attempt})
    here.snapshot(4, lambda: b"of what did not go on")
    again = Entry(2, (b"row",), (b"another",))
    here.decided(again, 3)
    assert here.shared_range == (0, 3)
    assert here.log.newest == again
    assert here.notes(4) == here.notes(2)
    here.hear("coordinator", say.Install(1, View(3, (B,), (0,), 2)))
    here.decided(entry(3), 1)  # by a process that has not heard of view 3
    assert here.log.newest == again


def test_who_begins_from_storage_begins_the_log_anew_where_it_does_not_reach() -> None:
    here, _ = keeper()
    here.learn(0, b"the seed's", ())
    here.decided(entry(0), 1)
    here.learn(1, b"known", ())
    assert here.shared_range == (0, 1), "it knows as much, and from further back"
    here.learn(4, b"stored", ())
    here.decided(entry(4), 2)
    assert here.shared_range == (4, 5)
    here.learn(3, b"older", ())
    assert here.shared_range == (4, 5), "another process here is further"


def test_a_copy_is_freed_when_two_views_have_no_use_for_it() -> None:
    here, _ = keeper()
    here.hold(0, "a", owned(tag=5))
    sources = {0: (Source(Tier.KEEPER, "x", 5),)}
    here.hear("coordinator", say.Install(1, View(2, (B,), (0,), 5, sources)))
    assert 0 in here.slots, "the new host fetches it now"
    here.hear("coordinator", say.Install(1, View(3, (B,), (0,), 6)))
    assert 0 in here.slots, "the view before named it"
    here.hear("coordinator", say.Install(1, View(4, (B,), (0,), 7)))
    assert 0 not in here.slots


def test_bundles_come_back_and_damage_is_an_error() -> None:
    parts = [b"", b"abc", b"x" * 1000]
    assert unbundle(bundle(parts)) == parts
    assert unbundle(bundle([])) == []
    for damaged in (b"", bundle(parts)[:-1], bundle(parts) + b"x"):
        with pytest.raises(MessageError):
            unbundle(damaged)
