"""How long a step takes: plain PyTorch DDP (gloo) against this trainer, in two processes of one thread each.

Both train the same network from the same weights on the same batches; a check after the warm-up proves it. DDP reads
tensors that lie ready, ours goes the way of a real run (loader, vote, exchange over TCP, apply, TensorBoard). Rounds
are interleaved, so that whatever else the machine does meets all alike. `dgc` is shown for information.

Ours, by part: `forward_backward` from the task's loss to the end of backward; `exchange` all of the sum (encode, send,
wait, add up, hand back: an all-reduce's work) and the wait for the others' rows of the vote, where their slower
forward-backward shows. All that remains is `other`, and `other_parts` says where it is.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from bench_sides import WARMUP, WORKERS, Bench, Ours, PlainDDP
from torch import Tensor

from elastic_dgc.bench.figures import ms
from elastic_dgc.bench.machine import machine
from elastic_dgc.errors import Disagreement, ElasticDGCError, UsageError
from elastic_dgc.precision.determinism import make_deterministic
from elastic_dgc.trainer.heap import keep_heap

MODES = ("ddp", "dense", "dgc")
MOST_RATIO, MOST_OTHER = 1.1, 0.10
COMPARED = 2  # steps after which weights are compared; rounding grows tenfold with every further one
SAME_WEIGHTS = 1e-3  # of the way that they have gone; the orders of addition differ, so bits do too


def worker(rank: int, bench: Bench, folder: str) -> None:
    """One of the two processes. Rank 0 writes every step's seconds by mode and round to `steps.json`."""
    make_deterministic(1, torch.device("cpu"))
    keep_heap()  # of the process, so plain DDP gains too
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=WORKERS)
    ours = {exchange: Ours(bench, exchange, rank, Path(folder)) for exchange in ("dense", "dgc")}
    sides: dict[str, Any] = {"ddp": PlainDDP(bench, rank), **ours}

    def run(mode: str, steps: int) -> list[dict[str, float]]:
        # a plain DDP script does not ask for deterministic algorithms
        torch.set_deterministic_debug_mode("default" if mode == "ddp" else "error")
        dist.barrier()
        return [sides[mode].step() for _ in range(steps)]

    initial = _flat(sides["ddp"].weights())
    for mode in MODES:
        run(mode, COMPARED)
    ours_now, theirs_now = _flat(sides["dense"].weights()), _flat(sides["ddp"].weights())
    difference = float((ours_now - theirs_now).norm() / (theirs_now - initial).norm())
    if not difference < SAME_WEIGHTS:
        raise Disagreement(
            f"after {COMPARED} steps the weights of dense and DDP are {difference:.2g} of their way apart: they do not "
            f"compute the same thing, so their times must not be compared"
        )
    for mode in MODES:
        run(mode, WARMUP - COMPARED)
    rounds = [{mode: run(mode, bench.steps) for mode in MODES} for _ in range(bench.rounds)]
    if rank == 0:
        sent = {mode: side.transport.bytes_sent for mode, side in ours.items()}
        found = {"rounds": rounds, "difference": difference, "bytes_sent": sent}
        Path(folder, "steps.json").write_text(json.dumps(found))
    dist.barrier()
    for side in ours.values():
        side.close()
    dist.destroy_process_group()


def _flat(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([one.detach().flatten() for _, one in sorted(weights.items())])


def measure(bench: Bench) -> dict[str, Any]:
    """Run the benchmark in two new processes. Raises `UsageError`, and what a process raised."""
    for name, value, least in (("steps", bench.steps, 1), ("rounds", bench.rounds, 1), ("batch", bench.batch, 2)):
        if value < least:
            raise UsageError(f"{name} = {value}: must be at least {least}")
    with tempfile.TemporaryDirectory(prefix="bench_step-") as folder:
        torch.multiprocessing.spawn(worker, (bench, folder), nprocs=WORKERS)
        found = json.loads(Path(folder, "steps.json").read_text())
    return {
        **asdict(bench),
        **summarise(found["rounds"]),
        "weights_differ": found["difference"],
        "bytes_sent": found["bytes_sent"],
        **machine(),
    }


def summarise(rounds: list[dict[str, list[dict[str, float]]]]) -> dict[str, Any]:
    """Medians of all rounds' steps. `ratio` is the median over rounds of the ratio within a round: what else the
    machine does changes slowly, and meets both sides of a round."""
    median = statistics.median
    medians, cpu = (
        [{mode: median(step[clock] for step in steps) for mode, steps in one.items()} for one in rounds]
        for clock in ("step", "cpu")
    )
    ratios = sorted(one["dense"] / one["ddp"] for one in medians)
    found: dict[str, Any] = {f"{mode}_ms": ms(median(one[mode] for one in medians)) for mode in MODES}
    found |= {f"{mode}_cpu_ms": ms(median(one[mode] for one in cpu)) for mode in MODES}
    found |= {
        "ratio": round(median(ratios), 3),
        "ratio_range": [round(ratios[0], 3), round(ratios[-1], 3)],
        "cpu_ratio": round(median(one["dense"] / one["ddp"] for one in cpu), 3),
        "dgc_ratio": round(median(one["dgc"] / one["ddp"] for one in medians), 3),
    }
    for mode in MODES[1:]:
        steps = [step for one in rounds for step in one[mode]]
        named = [name for name in steps[0] if name not in ("step", "cpu", "forward_backward", "exchange")]
        others = [sum(step[name] for name in named) for step in steps]
        found[mode] = {
            "forward_backward_ms": ms(median(step["forward_backward"] for step in steps)),
            "exchange_ms": ms(median(step["exchange"] for step in steps)),
            "other_ms": ms(median(others)),
            "other_share": round(median(o / step["step"] for o, step in zip(others, steps, strict=True)), 3),
            "other_parts_ms": {name: ms(median(step[name] for step in steps)) for name in named},
        }
    found["other_share"] = found["dense"]["other_share"]
    found["passed"] = found["ratio"] <= MOST_RATIO and found["other_share"] < MOST_OTHER
    return found


def table(result: dict[str, Any]) -> str:
    """The result for a reader, in ms."""
    dense, dgc = result["dense"], result["dgc"]
    rows: list[tuple[str, Any, Any, Any]] = [
        ("ms", "DDP", "dense", "dgc"),
        ("step", *(result[f"{mode}_ms"] for mode in MODES)),
        ("forward-backward", "", dense["forward_backward_ms"], dgc["forward_backward_ms"]),
        ("exchange", "", dense["exchange_ms"], dgc["exchange_ms"]),
        ("other", "", dense["other_ms"], dgc["other_ms"]),
        *(
            (f"  {name}", "", dense["other_parts_ms"][name], dgc["other_parts_ms"][name])
            for name in dense["other_parts_ms"]
        ),
        ("other's share of the step", "", dense["other_share"], dgc["other_share"]),
        ("ratio to DDP", "", result["ratio"], result["dgc_ratio"]),
        ("processor time, all threads", *(result[f"{mode}_cpu_ms"] for mode in MODES)),
    ]
    low, high = result["ratio_range"]
    return "\n".join(
        [
            f"{result['model']}, {WORKERS} processes of batch {result['batch']}; medians of {result['rounds']} rounds "
            f"of {result['steps']} steps; {result['cpu']}, {result['cores']} cores, torch {result['torch']}",
            *(f"{name:28}" + "".join(f"{value:>10}" for value in values) for name, *values in rows),
            f"wanted of dense: ratio at most {MOST_RATIO} (rounds from {low} to {high}), other under "
            f"{MOST_OTHER:.0%}: {'met' if result['passed'] else 'NOT met'}",
        ]
    )


@click.command(help=__doc__)
@click.option("--steps", default=10, show_default=True, help="Steps of each side in a round.")
@click.option("--rounds", default=10, show_default=True)
@click.option("--batch", default=32, show_default=True, help="Images per process and step.")
@click.option("--json", "to", help="Write the figures to this file as JSON; '-': to stdout, the table to stderr.")
def main(steps: int, rounds: int, batch: int, to: str | None) -> None:
    try:
        result = measure(Bench(steps=steps, rounds=rounds, batch=batch))
    except ElasticDGCError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo(table(result), err=to == "-")
    if to == "-":
        click.echo(json.dumps(result))
    elif to is not None:
        Path(to).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
