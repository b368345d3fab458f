"""What is of an older view is refused, what belongs to an attempt outlives a view."""

from __future__ import annotations

import pytest

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Key, Kind
from elastic_dgc.membership.roster import View, Worker
from elastic_dgc.protocol.letters import Frame
from elastic_dgc.protocol.post import Post

A, B, C = Worker("a", "x"), Worker("b", "y"), Worker("c", "z")


def view(number: int, *workers: Worker) -> View:
    return View(number, workers or (A, B), (0, 1), 0)


def key(kind: Kind, attempt: int = 5, virtual_worker: int = 0) -> Key:
    return Key(kind, attempt, virtual_worker)


def test_rows_and_messages_outlive_a_view_and_nothing_else_does() -> None:
    post = Post()
    post.install(view(1))
    kinds = (Kind.ROW, Kind.MESSAGE, Kind.SLICE, Kind.SUM, Kind.BUFFERS, Kind.DIGEST)
    for kind in kinds:
        post.deliver("b", Frame(1, key(kind), b"x"))
    post.install(view(2))
    assert [kind for kind in kinds if post.has([key(kind)])] == [Kind.ROW, Kind.MESSAGE]


def test_an_older_view_is_refused_from_the_fence_on_and_a_newer_one_waits() -> None:
    post = Post()
    post.install(view(1))
    post.fence(3)
    post.deliver("b", Frame(1, key(Kind.ROW), b"old"))
    post.deliver("b", Frame(2, key(Kind.ROW), b"old"))
    post.deliver("b", Frame(3, key(Kind.ROW), b"new"))
    assert len(post.refused) == 2
    assert not post.has([key(Kind.ROW)])
    post.install(view(3))
    assert post.get(key(Kind.ROW)) == b"new"


def test_only_members_are_heard() -> None:
    post = Post()
    post.install(view(1))
    post.deliver("c", Frame(1, key(Kind.ROW), b"x"))
    post.deliver("c", Frame(2, key(Kind.ROW), b"x"))  # early: it may be in view 2
    assert len(post.refused) == 1
    post.install(view(2, A, B, C))
    assert post.has([key(Kind.ROW)])


def test_the_same_bytes_may_come_twice_and_others_are_an_error() -> None:
    post = Post()
    post.install(view(1))
    post.deliver("b", Frame(1, key(Kind.ROW), b"x"))
    post.deliver("b", Frame(1, key(Kind.ROW), memoryview(b"x")))
    with pytest.raises(MessageError, match="ROW of virtual worker 0, attempt 5 arrived twice"):
        post.deliver("b", Frame(1, key(Kind.ROW), b"y"))


def test_forgetting_keeps_the_attempt_named() -> None:
    post = Post()
    post.install(view(1))
    for attempt in (4, 5, 6):
        post.deliver("b", Frame(1, key(Kind.MESSAGE, attempt, attempt), b"x"))
    post.forget(5)
    assert [post.held(Kind.MESSAGE, attempt) for attempt in (4, 5, 6)] == [set(), {5}, {6}]
