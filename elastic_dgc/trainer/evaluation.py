"""Evaluation by all workers together, with a result that does not depend on how many they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from elastic_dgc.data.loader import evaluation_batches, iterate
from elastic_dgc.data.source import Source
from elastic_dgc.errors import TaskFailed
from elastic_dgc.exchange.ask import Kind
from elastic_dgc.keeping.serialize import pack, unpack
from elastic_dgc.seeds import seed_everything
from elastic_dgc.step.compute import describe
from elastic_dgc.step.replica import Replica
from elastic_dgc.tasks.task import Task
from elastic_dgc.trainer.diagnosis import failed
from elastic_dgc.trainer.group import Group


def averaged_buffers(task: Task, group: Group, replica: Replica) -> dict[str, Tensor]:
    """Every buffer's value for evaluation and model file, from all virtual workers, in their order."""
    own = {k: pack(one.buffers, {}) for k, one in replica.owned.items()}
    everyone = [unpack(data)[0] for data in group.gather_virtual(Kind.BUFFERS, own, "evaluation")]
    averaged = {name: task.averaged_buffer(name, [one[name] for one in everyone]) for name in everyone[0]}
    for name, buffer in replica.model_buffers().items():
        if averaged[name].shape != buffer.shape or averaged[name].dtype != buffer.dtype:
            raise TaskFailed(
                f"averaged_buffer('{name}') returned {averaged[name].dtype} {tuple(averaged[name].shape)}, the model's "
                f"buffer is {buffer.dtype} {tuple(buffer.shape)}"
            )
    return averaged


def evaluate(
    task: Task,
    group: Group,
    replica: Replica,
    source: Source,
    batch: int,
    threads: int,
    to_device: Any,
    left_out: Callable[[list[int]], None] = lambda rows: None,
) -> dict[str, float]:
    """Mean metrics over the source. Batch j is evaluated by worker j mod N, and the sums are added in the order of
    the batches. The model is left in eval mode, with averaged buffers in it. `left_out` is told of rows that a batch
    lacks, on the worker that has it. Raises `TaskFailed` on everyone."""
    replica.use_buffers(averaged_buffers(task, group, replica))
    replica.model.eval()
    parts = evaluation_batches(source, batch)
    mine = range(group.members.rank, len(parts), group.members.size)
    found: list[list[Any]] = []
    problem: str | None = None
    error: Exception | None = None
    seed_everything(replica.settings.seed, -2)
    at_work: list[int] = []
    try:
        with torch.no_grad():
            batches = iterate(source, [parts[j] for j in mine], threads)
            for j, loaded in zip(mine, batches, strict=True):
                group.fault("evaluate")
                data = to_device(loaded.data)
                left_out(loaded.left_out.tolist())
                out = set(loaded.left_out.tolist())
                at_work = [row for row in loaded.rows.tolist() if row not in out]
                sums = {name: float(value) for name, value in task.evaluate(replica.model, data).items()}
                found.append([j, len(at_work), sums])
                at_work = []
    except Exception as raised:  # noqa: BLE001 - the user's own code; the others must hear of it
        error, problem = raised, describe(raised, -1, group.attempt, at_work)
    told = group.gather({"found": found, "problem": problem}, "evaluation")
    for one in told:
        if one["problem"] is not None:
            text = failed(one["problem"]).replace("virtual worker -1", "in the evaluation")
            raise TaskFailed(text) from error
    totals: dict[str, float] = {}
    samples = 0
    for _, count, sums in sorted(entry for one in told for entry in one["found"]):
        samples += count
        for name, value in sums.items():
            totals[name] = totals.get(name, 0.0) + value
    return {name: value / samples for name, value in totals.items()} if samples else {}
