"""Forward and backward of one virtual worker, without any communication, and its row of the vote."""

from __future__ import annotations

import math
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import elastic_dgc
from elastic_dgc.precision.autocast import autocast
from elastic_dgc.precision.finite import first_non_finite, joint_norm
from elastic_dgc.seeds import seed_everything
from elastic_dgc.step.replica import LossFunction, Replica
from elastic_dgc.step.row import Health, Request, Row

V_NORM_EVERY = 16  # attempts; it is for people, and reading v costs a tenth of the compression

_PACKAGE = str(Path(elastic_dgc.__file__).parent)
_STDLIB = sysconfig.get_paths()["stdlib"]
_LIBRARIES = str(Path(torch.__file__).parent.parent)


@dataclass(frozen=True)
class MicroBatch:
    """Collated data and how many samples are in it; 0 samples: no forward. `rows`: which samples, in order, where that
    is known: named where one of them is the cause of trouble."""

    data: Any
    count: int
    rows: tuple[int, ...] = ()


INPUTS_SHOWN = 8
SAMPLES_SHOWN = 32  # of a micro-batch: any of them may be the cause

BatchesOf = Callable[[int], Sequence[MicroBatch]]
"""The micro-batches of a virtual worker's present step."""


def compute(
    replica: Replica, virtual_worker: int, batches: BatchesOf, loss: LossFunction, requests: Request
) -> tuple[Row, Exception | None]:
    """The gradient of this virtual worker's share into its other v, its buffers into the other copies.

    The gradient is the mean over a full share (`settings.share`), times the loss scale; the division by the global
    number of samples comes after the vote, which counts them. Whatever the user's code raises, in reading data too,
    becomes a row, so that nobody hangs; the exception is returned beside it.
    """
    owned, counters = replica.owned[virtual_worker], replica.counters
    error: Exception | None = None
    text, health = "", Health.GOOD
    total, count, samples = torch.zeros((), device=replica.device), 0, 0
    replica.attach(virtual_worker)
    at_work: MicroBatch | None = None  # what the user's code has in hands
    try:
        if not replica.model.training:
            replica.model.train()
        replica.use_buffers(owned.buffers)
        micro = batches(virtual_worker)
        for index, batch in enumerate(micro):
            if batch.count:
                at_work = batch
                seed_everything(replica.settings.seed, counters.attempt, virtual_worker, index)
                mean, taken = _loss(loss, replica, batch)
                (mean * (counters.loss_scale * taken / replica.settings.share)).backward()
                total += mean.detach() * taken
                count += taken
                samples += batch.count
        at_work = None
        replica.keep_buffers(virtual_worker)
    except Exception as raised:  # noqa: BLE001 - the user's own code may raise anything; it becomes a row
        error, health = raised, Health.ERROR
        text = describe(raised, virtual_worker, counters.attempt, at_work.rows if at_work is not None else ())
    norms = [replica.collect(virtual_worker)]
    if counters.attempt % V_NORM_EVERY == 0 or counters.skips_in_a_row > 0:
        norms.append(joint_norm(owned.v).to(replica.device))
    loss_sum, gradient_norm, *measured = torch.stack([total, *norms]).tolist()
    v_norm = measured[0] if measured else math.nan
    if health is Health.GOOD:
        health, text = _diagnose(replica, virtual_worker, loss_sum, gradient_norm, micro)
    if health is Health.GOOD and measured and not math.isfinite(v_norm):
        # Never by a gradient, whose norm was finite: memory that forgot.
        health, text = Health.NON_FINITE, f"virtual worker {virtual_worker}: its residual v is not finite"
    row = Row(
        health, requests, counters.attempt, counters.applied, samples, count, loss_sum, gradient_norm, v_norm,
        counters.loss_scale, replica.settings.identity, text,
    )  # fmt: skip
    return row, error


def _loss(loss: LossFunction, replica: Replica, batch: MicroBatch) -> tuple[Tensor, int]:
    with autocast(replica.settings.precision, replica.device):
        result = loss(replica.model, batch.data)
    mean, taken = result if isinstance(result, tuple) else (result, batch.count)
    if not isinstance(mean, Tensor) or mean.numel() != 1 or not mean.requires_grad:
        raise TypeError(
            f"the task's loss must return the mean loss as a tensor of one element with a graph, not {mean!r:.80}"
        )
    return mean.reshape(()).float(), int(taken)


def _diagnose(
    replica: Replica, virtual_worker: int, loss_sum: float, gradient_norm: float, micro: Sequence[MicroBatch]
) -> tuple[Health, str]:
    """Whether a virtual worker's share is good, and why not. Buffers count: an infinite activation ends in them
    alone."""
    buffers = replica.watched(replica.owned[virtual_worker].other_buffers)
    floating = [b.reshape(-1) for b in buffers.values() if b.is_floating_point()]
    calm = not floating or math.isfinite(joint_norm(torch.cat(floating)))
    if calm and math.isfinite(loss_sum) and math.isfinite(gradient_norm):
        return Health.GOOD, ""
    buffer = None if calm else first_non_finite(buffers)
    gradient = None if math.isfinite(gradient_norm) else first_non_finite(replica.gradient(virtual_worker))
    forward = not math.isfinite(loss_sum) or buffer is not None
    found = _bad_inputs(micro)
    if gradient is not None:
        found.append(f"gradient of {gradient}")
    if not math.isfinite(loss_sum):
        found.append(f"loss {loss_sum}")
    if buffer is not None and gradient is None and math.isfinite(loss_sum):
        found.append(f"buffer {buffer}")
    if gradient is None and not forward:
        if math.isfinite(gradient_norm):
            return Health.GOOD, ""  # finite buffers whose norm overflows
        found.append("the norm of the gradient overflows")
    return Health.NON_FINITE if forward else Health.OVERFLOW, f"virtual worker {virtual_worker}: {', '.join(found)}"


def _bad_inputs(micro: Sequence[MicroBatch]) -> list[str]:
    """The samples whose own values are not finite: with them it is no use to look for another cause."""
    rows: list[int] = []
    for batch in micro:
        bad = torch.zeros(len(batch.rows), dtype=torch.bool)
        for tensor in _floating(batch.data):
            if tensor.dim() and tensor.shape[0] == len(batch.rows):
                bad |= ~torch.isfinite(tensor.reshape(len(batch.rows), -1)).all(1).cpu()
        rows += [row for row, wrong in zip(batch.rows, bad.tolist(), strict=True) if wrong]
    return [f"input of row {_some(rows, INPUTS_SHOWN)} is not finite"] if rows else []


def _some(rows: Sequence[int], most: int) -> str:
    return ", ".join(map(str, rows[:most])) + (f" and {len(rows) - most} more" if len(rows) > most else "")


def _floating(data: Any) -> Iterator[Tensor]:
    """The tensors of floats in a nested batch."""
    if isinstance(data, Tensor):
        if data.is_floating_point() and data.numel():
            yield data
    elif isinstance(data, dict):
        for value in data.values():
            yield from _floating(value)
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _floating(value)


def describe(error: BaseException, virtual_worker: int, attempt: int, rows: Sequence[int] = ()) -> str:
    """'ValueError: text (virtual worker 2, attempt 17, at file.py:33 in loss; samples: rows 3, 4)', with the notes it
    carries before the samples, which are those of the micro-batch."""
    place = place_of(error)
    notes = [*getattr(error, "__notes__", [])] + ([f"samples: rows {_some(rows, SAMPLES_SHOWN)}"] if rows else [])
    told = "".join(f"; {note}" for note in notes)
    where = f"virtual worker {virtual_worker}, attempt {attempt}{f', at {place}' if place else ''}{told}"
    return f"{said_by(error)} ({where})"


def said_by(error: BaseException) -> str:
    """'ValueError: text', on one line."""
    return f"{type(error).__name__}: {' | '.join(line.strip() for line in str(error).splitlines() if line.strip())}"


def place_of(error: BaseException, users_only: bool = False) -> str:
    """'file.py:33 in loss': the innermost place in the user's own code; where there is none the innermost of all, or ''
    if `users_only`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if is_users_frame(one.filename)]
    found = own or ([] if users_only else frames)
    return f"{found[-1].filename}:{found[-1].lineno} in {found[-1].name}" if found else ""


def is_users_frame(filename: str) -> bool:
    """Whether a file of a traceback is neither this package's nor an installed library's nor Python's own."""
    return not filename.startswith((_PACKAGE, _LIBRARIES, _STDLIB, "<frozen "))
