"""From copies of the past and the log to the present owned state of one lost virtual worker.

Its gradients are computed again as they were then, at the weights of then, and what was sent is taken out as the log
says, not by selecting again. On deterministic hardware the result is the lost state bit for bit, and the logged values
tell: they are what is in v at those places, rounded for the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from elastic_dgc.compression import values as wire
from elastic_dgc.compression.config import Values
from elastic_dgc.compression.dgc import clear_sent
from elastic_dgc.compression.message import Message
from elastic_dgc.errors import TaskFailed, Unreplayable
from elastic_dgc.step.advance import apply_entry, is_skip, read_entry
from elastic_dgc.step.compute import MicroBatch, compute
from elastic_dgc.step.log import Entry
from elastic_dgc.step.plan import Plan, plan
from elastic_dgc.step.prepare import accumulate_gradient
from elastic_dgc.step.replica import LossFunction, Replica
from elastic_dgc.step.row import Health, Request, Row
from elastic_dgc.step.state import OwnedState
from elastic_dgc.step.sums import unpack_of

BatchesAt = Callable[[int, int], Sequence[MicroBatch]]
"""The micro-batches of (attempt, virtual worker)."""


@dataclass(frozen=True)
class Chunk:
    """u and v, fp32[high - low], of positions low to high as they were after `tag` decided attempts; u None without
    momentum."""

    tag: int
    low: int
    high: int
    u: Tensor | None
    v: Tensor


@dataclass(frozen=True)
class Replayed:
    """How a replay compares with the log. `compared`: logged values of this virtual worker at places whose chunk was
    loaded by then; `differences`: how many of them are not what was computed; `rows_differ`: attempts whose row (loss,
    norms, counts) is another one than the logged."""

    differences: int
    compared: int
    rows_differ: int

    @property
    def exact(self) -> bool:
        """Whether nothing tells against bitwise equality."""
        return self.differences == 0 and self.rows_differ == 0


def replay(
    replica: Replica,
    virtual_worker: int,
    batches: BatchesAt,
    loss: LossFunction,
    entries: Sequence[Entry],
    chunks: Sequence[Chunk],
    until: int,
) -> Replayed:
    """Compute a lost virtual worker's owned state after `until` decided attempts.

    `replica` hosts this virtual worker alone; its shared state and this one's buffers were loaded as they were at the
    attempt of `entries[0]`, which go on to `until - 1`. What is in u and v does not count: they come from the `chunks`,
    which cover the whole index space, each from a tag between these two. Afterwards the shared state is at `until`
    too. Where a computed value differs from the logged one, the logged one, which everyone has applied, is taken out
    of v, so nothing is applied twice or lost.

    Raises ValueError where entries or chunks do not fit, `TaskFailed` where the user's code raises, the errors of
    `advance`, and `Unreplayable`: with exchange 'dense-bf16' the rounding of the way back stays in the v of whoever
    adds up a slice, and the log has only the rounded sums; or a gradient is not finite here that was so then.
    """
    if replica.settings.exchange == "dense-bf16":
        raise Unreplayable(
            "exchange = 'dense-bf16' cannot be replayed: the log has rounded sums, and the rounding is in the lost v; "
            "use exchange = 'dgc' or 'dense' for exact recovery from a buddy's copy"
        )
    _check(replica, virtual_worker, entries, chunks, until)
    one = replica.owned[virtual_worker]
    for vector in (one.u, one.v):
        if vector is not None:
            vector.zero_()  # what a lost or new worker's memory had is of no use, and might not even be finite
    loaded = torch.zeros(replica.layout.numel, dtype=torch.bool)
    differences, compared, rows_differ = 0, 0, 0
    for entry in entries:
        _load(one, chunks, entry.attempt, loaded)
        rows, decision = read_entry(replica, entry)
        if not is_skip(entry, decision):
            planned = plan(replica.settings, replica.layout, replica.counters.applied)
            row = _gradient(replica, virtual_worker, batches, loss)
            rows_differ += not _same_row(row, rows[virtual_worker], bool(loaded.all()))
            # Scaled and clipped as everyone did who saw the logged row
            accumulate_gradient(replica, planned.density, decision.count, rows[virtual_worker], virtual_worker)
            replica.release()
            found = _take_out(replica, one, entry, planned, loaded)
            differences, compared = differences + found[0], compared + found[1]
        if apply_entry(replica, entry, decision):
            one.flip(entry.attempt + 1)
        else:
            one.tag = entry.attempt + 1
    _load(one, chunks, until, loaded)
    one.tag = until
    return Replayed(differences, compared, rows_differ)


def _check(replica: Replica, k: int, entries: Sequence[Entry], chunks: Sequence[Chunk], until: int) -> None:
    start, layout, momentum = replica.counters.attempt, replica.layout, replica.settings.momentum is not None
    if list(replica.owned) != [k]:
        raise ValueError(
            f"a replay of virtual worker {k} needs a replica for it alone, not for {sorted(replica.owned)}"
        )
    attempts = [entry.attempt for entry in entries]
    if attempts != list(range(start, until)):
        raise ValueError(f"a replay from attempt {start} until {until} needs each entry between, not {attempts}")
    end = 0
    for chunk in sorted(chunks, key=lambda one: one.low):
        sizes = {chunk.v.numel()} | ({chunk.u.numel()} if chunk.u is not None else set())
        if chunk.low != end or sizes != {chunk.high - chunk.low} or (chunk.u is not None) != momentum:
            raise ValueError(
                f"chunk {chunk.low}..{chunk.high} (values: {sorted(sizes)}, u: {chunk.u is not None}) does not fit: "
                f"the next position is {end}, momentum: {momentum}"
            )
        if not start <= chunk.tag <= until:
            raise ValueError(f"chunk {chunk.low}..{chunk.high} has tag {chunk.tag}, not within {start}..{until}")
        end = chunk.high
    if end != layout.numel:
        raise ValueError(f"the chunks end at position {end} of {layout.numel}")


@torch.no_grad()
def _load(one: OwnedState, chunks: Sequence[Chunk], tag: int, loaded: Tensor) -> None:
    """Chunks of this tag into the current u and v."""
    for chunk in chunks:
        if chunk.tag == tag:
            one.v[chunk.low : chunk.high].copy_(chunk.v)
            if one.u is not None and chunk.u is not None:
                one.u[chunk.low : chunk.high].copy_(chunk.u)
            loaded[chunk.low : chunk.high] = True


def _gradient(replica: Replica, virtual_worker: int, batches: BatchesAt, loss: LossFunction) -> Row:
    """Forward and backward of the present attempt, for accumulation; its row as it is here."""
    number = replica.counters.attempt
    row, error = compute(replica, virtual_worker, lambda k: batches(number, k), loss, Request.NONE)
    if error is not None:
        raise TaskFailed(row.text) from error
    if row.health is not Health.GOOD:
        raise Unreplayable(
            f"{row.text} in the replay of attempt {number}, where it was finite at first: the memory of this machine, "
            f"or hardware that computes otherwise; replay on another one, or accept a copy that is not exact"
        )
    return row


def _same_row(row: Row, logged: Row, all_loaded: bool) -> bool:
    """Bit for bit, but for requests; the norm of v only counts where all of v is there."""
    v_norm = logged.v_norm if all_loaded else row.v_norm
    return row.pack() == replace(logged, requests=row.requests, v_norm=v_norm).pack()


@torch.no_grad()
def _take_out(replica: Replica, one: OwnedState, entry: Entry, planned: Plan, loaded: Tensor) -> tuple[int, int]:
    """What was sent leaves the other copies, as the log says. Returns (differences, compared)."""
    if planned.whole or entry.messages is None:
        one.other_v.zero_()  # fp32: sent whole, and nothing is rounded
        return 0, 0
    message = unpack_of(replica.layout, one.virtual_worker, entry.messages[one.virtual_worker])
    found = _compare(message, one.other_v, planned.values, loaded)
    clear_sent(replica.layout, message, one.other_u, one.other_v, replica.settings.compression.masking)
    return found


def _compare(message: Message, v: Tensor, kind: Values, loaded: Tensor) -> tuple[int, int]:
    """How many logged values are not what v rounds to, of those whose chunk is loaded, and how many these are."""
    held = v.index_select(0, message.positions.to(v.device)).cpu()
    differ = wire.encode(held, kind).decode().view(torch.int32) != message.values.view(torch.int32)
    known = loaded[message.positions]
    if kind == "int8" and len(held):
        # A block's scale is of all of its values. Where some are not there, theirs must be within half a step.
        told = _by_block(known, True).all(1, keepdim=True)
        logged = _by_block(message.values, 0.0)
        half = logged.abs().amax(1, keepdim=True) * (0.501 / wire.STEPS)
        apart = (_by_block(held, 0.0) - logged).abs() > half
        differ = torch.where(told, _by_block(differ, False), apart).flatten()[: len(held)]
    return int((differ & known).sum()), int(known.sum())


def _by_block(values: Tensor, fill: float) -> Tensor:
    """[n] as rows of a block each, filled up."""
    return torch.nn.functional.pad(values, (0, -len(values) % wire.BLOCK), value=fill).view(-1, wire.BLOCK)
