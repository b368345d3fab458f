"""The rules of the protocol, each with a patch that switches it off: what a mistake in the code would do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from elastic_dgc.keeping.piece import Piece
from elastic_dgc.keeping.rolling import RollingCopy
from elastic_dgc.membership import draft
from elastic_dgc.membership.actions import Action, Persist
from elastic_dgc.membership.change import Changes
from elastic_dgc.membership.control import Plan, Transfer
from elastic_dgc.membership.coordinator import Coordinator
from elastic_dgc.protocol import change, member
from elastic_dgc.protocol.keeper import Keeper
from elastic_dgc.protocol.letters import Frame, Given, Snapshot
from elastic_dgc.protocol.member import Member
from elastic_dgc.protocol.post import Post
from elastic_dgc.protocol.wait import Out
from elastic_dgc.step.state import OwnedState


def flip_before_apply(patch: pytest.MonkeyPatch) -> None:
    """What is sent leaves u and v when it is packed, as in the published code; not when the attempt is decided."""
    flip, prepared = OwnedState.flip, Member.prepared
    flipped: set[int] = set()

    def flip_once(self: OwnedState, tag: int) -> None:
        if id(self) in flipped:
            flipped.discard(id(self))
            self.tag = tag
        else:
            flip(self, tag)

    def prepared_and_flipped(self: Member, virtual_worker: int, message: bytes) -> None:
        prepared(self, virtual_worker, message)
        state = self.replica.owned[virtual_worker]
        if id(state) not in flipped:
            flip(state, self.decided)
            flipped.add(id(state))

    patch.setattr(OwnedState, "flip", flip_once)
    patch.setattr(Member, "prepared", prepared_and_flipped)


def write_in_place(patch: pytest.MonkeyPatch) -> None:
    """There is no other copy of u, v and the buffers: an attempt writes where it reads."""
    for name in ("u", "v", "buffers"):
        patch.setattr(OwnedState, f"other_{name}", getattr(OwnedState, name))


def free_the_log_early(patch: pytest.MonkeyPatch) -> None:
    """What was decided is freed at once, not when a vote has proved that everyone decided it (R9)."""
    given, carry_out = change._given, Keeper._carry_out

    def freed(m: Member, plan: Plan, one: Transfer) -> Given:
        if one.what == "entry":
            return Given(plan.number, one.what, one.attempt, one.virtual_worker, None, "it is freed already")
        return given(m, plan, one)

    def without_entries(self: Keeper, plan: Plan) -> list[Out]:
        return carry_out(self, replace(plan, transfers=tuple(one for one in plan.transfers if one.what != "entry")))

    patch.setattr(change, "_given", freed)
    patch.setattr(Keeper, "_carry_out", without_entries)


def replace_copies_early(patch: pytest.MonkeyPatch) -> None:
    """A buddy's copy replaces its predecessor before it is proved that everyone has decided what is in it (R9)."""
    put = RollingCopy.put

    def put_and_settle(self: RollingCopy, piece: Piece) -> bool:
        taken = put(self, piece)
        self.settle(piece.tag)
        return taken

    patch.setattr(RollingCopy, "put", put_and_settle)


def no_flush(patch: pytest.MonkeyPatch) -> None:
    """Nothing moves before a view is installed."""
    plan = draft.flush_plan
    patch.setattr(draft, "flush_plan", lambda *args, **named: replace(plan(*args, **named), transfers=(), witness={}))


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """What a sender of an older view sends is taken in."""

    def deliver(self: Post, sender: str, frame: Frame) -> None:
        self.put(frame.key, frame.payload)

    patch.setattr(Post, "deliver", deliver)


def no_fence_at_keepers(patch: pytest.MonkeyPatch) -> None:
    """The same, of copies."""
    keep = Keeper._keep

    def keep_all(self: Keeper, letter: Snapshot, *rest: Any) -> Any:
        return keep(self, replace(letter, view=1 << 40), *rest)

    patch.setattr(Keeper, "_keep", keep_all)


def install_unacknowledged(patch: pytest.MonkeyPatch) -> None:
    """A view is installed as soon as it is planned."""
    patch.setattr(Changes, "acknowledged", property(lambda self: self.open is not None and self.open.draft is not None))


def announce_before_persisting(patch: pytest.MonkeyPatch) -> None:
    """Records are written after what depends on them was said."""

    def late(method: Callable[..., list[Action]]) -> Callable[..., list[Action]]:
        def call(self: Coordinator, *args: Any) -> list[Action]:
            return sorted(method(self, *args), key=lambda one: isinstance(one, Persist))

        return call

    for name in ("start", "handle", "timer", "died"):
        patch.setattr(Coordinator, name, late(getattr(Coordinator, name)))


def sent_is_not_zeroed(patch: pytest.MonkeyPatch) -> None:
    """A stale copy is taken as it is, with what was sent since."""
    patch.setattr(member, "stale", lambda u, v, mask: None)


def copies_that_are_too_new(patch: pytest.MonkeyPatch) -> None:
    """A copy's attempt is not held against the one at which the view was closed."""
    fit = RollingCopy.fit
    patch.setattr(RollingCopy, "forget_after", lambda self, closed_at, view: None)
    patch.setattr(RollingCopy, "fit", lambda self, closed_at: fit(self, 1 << 40))


def served_while_alive(patch: pytest.MonkeyPatch) -> None:
    """A keeper gives a copy away before the process that works in it is gone."""
    init = Keeper.__init__

    def without_ending(self: Keeper, *args: Any) -> None:
        init(self, *args[:-1], lambda uid: None)

    patch.setattr(Keeper, "__init__", without_ending)
