"""Conservation (R4), in fp64 and per coordinate: accumulated = applied + still in v + lost, whatever failed.

What was accumulated and what v was after each attempt is measured in the memory of the processes (`shares`), those
that died later included. What was lost is the difference between a lost state and the one that was taken in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elastic_dgc.compression import values as wire
from elastic_dgc.errors import DamagedCheckpoint
from elastic_dgc.membership.roster import Tier
from elastic_dgc.protocol.packing import load_owned
from elastic_dgc.simulation.oracles import last
from elastic_dgc.simulation.reference import reference
from elastic_dgc.simulation.training import Training
from elastic_dgc.simulation.watching import Return
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.sums import unpack_of

if TYPE_CHECKING:
    from elastic_dgc.protocol.member import Member
    from elastic_dgc.simulation.world import World

ROUNDING = 4e-6  # of what passed through a coordinate: some fp32 additions in each of a few attempts


def conserved(world: World) -> list[str]:
    """What does not add up at the end of a run in which everybody who is left is done."""
    watch, recipe = world.watch, world.setting.recipe
    done = last(world)
    if not done:
        return ["nobody is there at the end"]
    replica = done[0].replica
    try:
        left = _left(world, done)
    except DamagedCheckpoint as error:
        return [f"not every virtual worker is there at the end, and {error}"]
    attempts = sorted(number for number in watch.rates if number in watch.entries)
    wrong, lost = [], torch.zeros(replica.layout.numel, dtype=torch.float64)
    for one in _inexact(world):
        gone = _true_v(one).double() - one.v.double()
        lost += gone
        wrong += _judge(one, gone)
    added, passed, applied = (torch.zeros_like(lost) for _ in range(3))
    weights = reference(recipe).first.double()
    for number in attempts:
        for k in range(recipe.virtual_workers):
            share = watch.shares.get((number, k))
            if share is None:
                return [*wrong, f"nobody saw what virtual worker {k} added with attempt {number}"]
            added += share.added
            passed += share.added.abs()
        total = _sum(world, replica, number)
        applied += total
        weights -= watch.rates[number] * total
    gap = (added - applied - left - lost).abs() - ROUNDING * (passed + lost.abs()) - 1e-9
    if gap.max() > 0:
        at = int(gap.argmax())
        wrong.append(
            f"coordinate {at}: {float(added[at]):.9g} accumulated is not {float(applied[at]):.9g} applied + "
            f"{float(left[at]):.9g} in v + {float(lost[at]):.9g} lost"
        )
    if recipe.kind != "adam":
        apart = float((weights - replica.weights.double()).abs().max())
        if apart > 1e-5:
            wrong.append(f"the weights are {apart:.3g} away from what all applied sums make of them")
    return wrong


@torch.no_grad()
def _left(world: World, done: Sequence[Member]) -> Tensor:
    """What is in v at the end, fp64, of all virtual workers. A host may have ended, or been told to, once another one
    was done: all is saved by then, so what it had is in the checkpoint there."""
    owned = {k: state for member in done for k, state in member.replica.owned.items()}
    missing = [k for k in range(world.setting.recipe.virtual_workers) if k not in owned]
    saved = Training(world.setting.recipe, world.durable).replica(missing).owned
    for k, state in saved.items():
        load_owned(state, world.durable.owned(done[0].decided, k))
    total = torch.zeros(done[0].replica.layout.numel, dtype=torch.float64)
    for state in (*owned.values(), *saved.values()):
        total += state.v.double()
    return total


def _inexact(world: World) -> list[Return]:
    """The returns that lost something. Not those after which the run began again below them: what they lost was trained
    again. Of several in one attempt the last counts, by whatever tier it came: the new host of an inexact copy may have
    been lost in that attempt, and handed on what it had, or the true one came back."""
    found: dict[tuple[int, int], Return] = {}
    for one in world.watch.returns:
        if any(view.number > one.view and view.closed_at < one.attempt for view in world.views):
            continue
        where = (one.virtual_worker, one.attempt)
        before = found.get(where)
        if before is not None:
            one = replace(one, lost_mass=max(one.lost_mass, before.lost_mass))
        if before is not None or not one.tier.exact:
            found[where] = one
    return list(found.values())


@torch.no_grad()
def _sum(world: World, replica: Replica, number: int) -> Tensor:
    """What an attempt applied, fp64."""
    entry, total = world.watch.entries[number], torch.zeros(replica.layout.numel, dtype=torch.float64)
    if entry.total is not None:
        return wire.from_bytes(entry.total, "fp32", replica.layout.numel).data.double()
    for k, packed in enumerate(entry.messages or ()):
        message = unpack_of(replica.layout, k, packed)
        total[message.positions] += message.values.double()
    return total


def _true_v(one: Return) -> Tensor:
    """What v was at this attempt at whoever had it."""
    return next(iter(one.history.values())).v if one.history else torch.zeros_like(one.v)


@torch.no_grad()
def _judge(one: Return, gone: Tensor) -> list[str]:
    """Nothing that was sent is there to be sent again: each value is zero, or one of before after which nothing was
    sent from there. And what was told to be lost at most is no less than what was."""
    wrong, k = [], one.virtual_worker
    allowed, open_yet = one.v == 0, torch.ones_like(one.v, dtype=torch.bool)
    for share in one.history.values():
        allowed |= open_yet & (one.v == share.v)
        if share.positions is None:
            open_yet[:] = False
        else:
            open_yet[share.positions] = False
    if not bool(allowed.all()):
        at = int((~allowed).nonzero()[0])
        wrong.append(f"virtual worker {k}: {float(one.v[at]):.6g} at coordinate {at} was sent, and is there again")
    norm = float(torch.linalg.vector_norm(gone))
    if norm > one.lost_mass:
        wrong.append(f"virtual worker {k}: {norm:.6g} was lost, {one.lost_mass:.6g} told to be the most")
    if one.tier is Tier.ZERO and bool((one.v != 0).any()):
        wrong.append(f"virtual worker {k}: nothing was left, and v is not zero")
    return wrong
