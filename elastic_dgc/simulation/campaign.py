"""A fault injection campaign: many scenarios in a few processes."""

from __future__ import annotations

import gc
import multiprocessing
import traceback
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch

from elastic_dgc.simulation.matrix.all import matrix
from elastic_dgc.simulation.scenario import Scenario, Verdict, play
from elastic_dgc.simulation.schedules import schedule

RANDOM = "seed-"
LAZY = ("torch._dynamo",)  # torch imports it with the first optimizer: once, not in every process
SHARE = 4  # scenarios that a process takes at once


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Scenario]:
    return {one.name: one for one in matrix()}


def scenario_named(name: str) -> Scenario:
    """Of the matrix, or 'seed-7': the random schedule of seed 7. Raises ValueError on anything else."""
    if name.startswith(RANDOM) and name.removeprefix(RANDOM).isdecimal():
        return schedule(int(name.removeprefix(RANDOM)))
    if name not in _by_name():
        raise ValueError(f"no scenario is named {name!r}; one is {next(iter(_by_name()))!r}")
    return _by_name()[name]


def names(first_seed: int, random: int) -> list[str]:
    """All of the matrix, and so many random schedules from that seed on."""
    return [*_by_name(), *(f"{RANDOM}{first_seed + n}" for n in range(random))]


def run(wanted: Sequence[str], processes: int) -> Iterator[Verdict]:
    """The verdicts as they come. Raises ValueError on a name that is none."""
    for name in wanted:
        scenario_named(name)
    if processes <= 1 or len(wanted) == 1:
        _one_thread()
        yield from map(_play, wanted)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *LAZY])
    with context.Pool(processes, initializer=_one_thread) as pool:
        yield from pool.imap_unordered(_play, wanted, chunksize=SHARE)


def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")
    gc.freeze()  # what was imported is never garbage: a tenth of the time went into looking


def _play(name: str) -> Verdict:
    scenario = scenario_named(name)
    try:
        return play(scenario)
    except Exception:  # noqa: BLE001 - a defect of the simulation or of the protocol: it is told as the scenario's
        wrong = traceback.format_exc(limit=-4)
        return Verdict(name, scenario.row, scenario.column, scenario.expected, (wrong,), False, 0, 0, 0.0)
