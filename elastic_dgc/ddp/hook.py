"""The communication hook: buckets are collected, and at the last one the whole step happens."""

# No `from __future__ import annotations`: DDP compares the hook's annotations with the types themselves.

import gc
import logging
import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.futures import Future

from elastic_dgc.compression.dgc import clip_factor
from elastic_dgc.compression.message import Message, unpack
from elastic_dgc.ddp.altered import Probe
from elastic_dgc.ddp.buckets import Arrived, Buckets
from elastic_dgc.ddp.checks import check_frozen
from elastic_dgc.ddp.exchange import texts
from elastic_dgc.ddp.plan import Plan
from elastic_dgc.ddp.settings import disagreement
from elastic_dgc.ddp.state import DGCState
from elastic_dgc.ddp.unused import give_to_unused
from elastic_dgc.ddp.vote import ROW_BYTES, Health, Row, agree
from elastic_dgc.errors import Diverged, ElasticDGCError, UsageError, error_named
from elastic_dgc.log import logger

_LARGEST = torch.finfo(torch.float32).max


def dgc_hook(state: DGCState, bucket: dist.GradBucket) -> Future[Tensor]:
    """What DDP calls for every bucket, in the order of buckets, on all ranks alike."""
    if not isinstance(bucket, dist.GradBucket):
        raise UsageError("DDP's python reducer (compiled autograd) has no buckets: use the default reducer")
    buffer = bucket.buffer()
    gpu = buffer.device.type == "cuda"
    future: Future[Tensor] = Future(devices=[buffer.device]) if gpu else Future()
    event = torch.cuda.Event() if gpu else None
    if event is not None:
        event.record()
    if bucket.index() == 0:
        state.arrived = []  # a pass that ended with an exception may have left some
    state.arrived.append(Arrived(buffer, bucket.parameters(), bucket.gradients(), future, event))
    if bucket.is_last():
        arrived, state.arrived = state.arrived, []
        with torch.no_grad():
            _step(state, arrived)
    return future


def _step(state: DGCState, arrived: list[Arrived]) -> None:
    """VOTE, then accumulate, compress, exchange, sum. Until the vote has returned nothing changes; if the exchange
    fails, nothing of the residual is lost."""
    problem: ElasticDGCError | None = None
    scale, norm, text = 1.0, 0.0, ""
    try:
        buckets = Buckets(state.layout, state.place, arrived)
        buckets.wait()
        scale = _check(state)
        norm, text = _norm(state, buckets, scale)
    except ElasticDGCError as error:
        problem = error
    health = Health.ERROR if problem else Health.NON_FINITE if text else Health.GOOD
    row = Row(health, state.steps, state.skipped, norm, scale, state.digest())
    rows = [Row.unpack(raw) for raw in state.exchange.gather(row.pack(), ROW_BYTES)]
    if any(one.health is Health.ERROR for one in rows):
        raise _error(state, rows, problem)
    if len({one.digest for one in rows}) > 1:
        raise disagreement(texts(state.exchange, state.settings(), size=1 << 20))  # thousands of param groups fit
    agree(rows)
    state.dense_bytes += 4 * state.layout.numel
    bad = [rank for rank, one in enumerate(rows) if one.health is Health.NON_FINITE]
    if bad:
        # Scalers overflow as a matter of course: no gather for the names of tensors.
        reasons = {rank: "an overflow" for rank in bad} if state.scaler else texts(state.exchange, text)
        _refuse(state, buckets, "; ".join(f"rank {rank}: {reasons[rank]}" for rank in bad), bool(text))
    else:
        state.gradient_norm = math.sqrt(sum(one.norm * one.norm for one in rows))
        planned = state.plan()
        factor = 1.0 if state.config.clip is None else clip_factor(norm, state.config.clip, state.world)
        rules = state.taken.rules(factor / (scale * state.world), first=state.steps == 0)
        state.residual.accumulate(buckets.flat, rules, planned.density)
        if (_whole if planned.whole else _sparse)(state, buckets, planned, scale):
            state.steps += 1
            state.skips_in_a_row = 0
            state.pending = True
            state.statistics.drop()
        else:
            _refuse(state, buckets, "the sum of all ranks' messages is beyond what fp32 holds", guilty=False)
    buckets.deliver()
    give_to_unused(state.ddp(), state.residual.parameters, buckets.flat)


def _check(state: DGCState) -> float:
    """The loss scale. Raises `UsageError` where training would go wrong."""
    if torch._C._current_graph_task_id() == -1:
        raise UsageError(
            "DDP.join is not supported: a rank without data has no gradient; give all ranks as many batches"
        )
    problem = state.taken.problem()
    if problem is not None:
        raise problem
    state.residual.check_parameters()
    check_frozen(state.frozen)
    if state.pending:
        raise UsageError(
            "two synchronised backward passes without optimizer.step() between them: what the first one handed out has "
            "left the residual and would be lost, so it must be applied, not discarded; accumulate gradients under "
            "model.no_sync() in all passes but the last"
        )
    scaler = state.scaler
    if scaler is None:
        if state.search_scaler:
            state.search_scaler = False
            _search_scaler()
        return 1.0
    if getattr(scaler, "_scale", 1) is None:
        raise UsageError("the GradScaler given to attach has not scaled a loss: use scaler.scale(loss).backward()")
    return float(scaler.get_scale())


def _search_scaler() -> None:
    for one in gc.get_objects():
        if issubclass(type(one), GradScaler) and one.is_enabled() and one._scale is not None:
            raise UsageError(
                "a GradScaler has scaled a loss, but attach was not given it: attach(..., scaler=scaler), so that the "
                "residual is kept unscaled; scaler=False if it belongs to another model"
            )


def _norm(state: DGCState, buckets: Buckets, scale: float) -> tuple[float, str]:
    """The joint norm of what this rank contributes, and what is not finite in words. Waits for the device once."""
    norms = torch.stack(list(torch._foreach_norm(buckets.flat))).cpu().double()
    joint = float(torch.linalg.vector_norm(norms))
    if math.isfinite(joint):
        return joint / (scale * state.world), ""
    index = int((~torch.isfinite(norms)).nonzero()[0])
    bad = int((~torch.isfinite(buckets.flat[index])).sum())
    segment = state.layout.segments[index]
    return 0.0, f"gradient of {segment.name} ({bad} of {segment.numel} values not finite)"


def _error(state: DGCState, rows: list[Row], problem: ElasticDGCError | None) -> ElasticDGCError:
    lines = texts(state.exchange, f"{type(problem).__name__}: {problem}" if problem else "")
    if problem is not None:
        return problem
    rank = next(rank for rank, row in enumerate(rows) if row.health is Health.ERROR)
    name, _, line = lines[rank].partition(": ")
    return error_named(name)(f"rank {rank}: {line}")


def _sparse(state: DGCState, buckets: Buckets, planned: Plan, scale: float) -> bool:
    """Every rank's message reaches all; their sum, in rank order, into the buckets. False: the sum does not fit, and
    the message is back in v."""
    residual, layout = state.residual, state.layout
    message = residual.message(state.config.values, planned.density)
    own = unpack(layout, message)
    arrived = False
    try:
        raw = state.exchange.gather(message, planned.gather_bytes)
        said: list[Message] = [own if rank == state.rank else unpack(layout, one) for rank, one in enumerate(raw)]
        arrived = sum(_largest(one) for one in said) * scale <= _LARGEST
    finally:
        if not arrived:
            residual.put_back(own)
    if not arrived:
        return False
    if state.config.masking:
        residual.mask(own)
    buckets.fill(0.0)
    for one in said:
        buckets.add(one.positions, one.values if scale == 1 else one.values * scale)
    state.probe = Probe.of(own, layout, residual.parameters, buckets.flat, scale) if state.probing else None
    return True


def _largest(message: Message) -> float:
    return float(message.values.abs().max()) if message.values.numel() else 0.0


def _whole(state: DGCState, buckets: Buckets, planned: Plan, scale: float) -> bool:
    """The sum of v, chunk by chunk, into the buckets; then v is cleared. False, with v as it was: it does not fit."""
    peaks = []
    for low, chunk in state.residual.chunks():
        state.exchange.sum(chunk)
        if scale != 1:
            chunk.mul_(scale)
        peaks.append(torch.linalg.vector_norm(chunk, math.inf))
        buckets.write(low, chunk)
    if not bool(torch.isfinite(torch.stack(peaks)).all()):
        return False
    state.residual.v.zero_()
    return True


def _refuse(state: DGCState, buckets: Buckets, reason: str, guilty: bool) -> None:
    """The step does not count: with a scaler every rank gets infinities, so that all of them back off; else zeros,
    which change nothing under SGD. Buffers become what they were before it. Rank 0 tells, and whoever is `guilty`.
    Raises `Diverged`, on all ranks alike, where that is no help."""
    state.skipped += 1
    number = f"step {state.steps + state.skipped} (applied: {state.steps}, skipped: {state.skipped})"
    end = None if state.scaler is not None else _end(state, number, reason)
    if end is not None:
        state.statistics.put_back()
        raise end
    if state.rank == 0 or guilty:
        level = logging.WARNING if state.scaler is None else logging.DEBUG
        logger(worker=state.rank).log(level, "%s is skipped, nothing changes: %s", number, reason)
    buckets.fill(0.0 if state.scaler is None else math.inf)
    state.statistics.put_back_after_backward()


def _end(state: DGCState, number: str, reason: str) -> Diverged | None:
    """The end of training, where skipping this step is no help."""
    if not state.taken.corrected:
        return Diverged(
            f"{number}: {reason}; {type(state.taken.optimizer).__name__} cannot skip a step, even a zero gradient "
            f"changes its state: look for what makes it, or train with a GradScaler"
        )
    state.skips_in_a_row += 1
    if state.skips_in_a_row < state.config.max_skips:
        return None
    return Diverged(f"{state.skips_in_a_row} steps in a row were skipped, the last is {number}: {reason}")
