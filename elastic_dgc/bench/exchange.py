"""`bench exchange`: the step time of every way to exchange, on the present workers, side by side in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field, field_validator
from torch import nn

from elastic_dgc.bench import link, networks
from elastic_dgc.bench.figures import counted
from elastic_dgc.bench.machine import machine, versions
from elastic_dgc.bench.modes import MODES, NONE, Mode, affordable, rotated
from elastic_dgc.bench.network import DEADLINE_S, Seat, joined
from elastic_dgc.bench.ours import Ours, settings_of
from elastic_dgc.bench.torch_sides import DDP, Batch, NoExchange
from elastic_dgc.config import Config, nearest
from elastic_dgc.models import registry
from elastic_dgc.precision.determinism import make_deterministic
from elastic_dgc.seeds import seed_everything
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.total import Total
from elastic_dgc.trainer.group import Group
from elastic_dgc.trainer.heap import keep_heap

Say = Callable[[str], None]


class ExchangeBench(Config):
    """What is measured: `steps` steps of every mode in each of `rounds`, the modes in another order each time."""

    model: str = Field("resnet50", description="network, ours or torchvision's")
    batch: int = Field(2, ge=1, description="random images per worker and step")
    size: int = Field(64, ge=1, description="height and width of the images")
    density: float = Field(0.001, gt=0, description="of the DGC modes, past the warm-up")
    rounds: int = Field(5, ge=1, description="rounds; ratios are medians of ratios within a round")
    steps: int = Field(4, ge=1, description="steps of a mode in a round")
    modes: tuple[str, ...] = Field(tuple(MODES), description="what is measured")
    transport: Literal["auto", "all-to-all", "tree", "collectives"] = Field(
        "auto", description="how messages of our step travel: by workers, bytes and measured speed, or always one way"
    )
    mode_limit_s: float = Field(60.0, gt=0, description="a slow mode gets fewer steps, so that it takes no longer")

    @field_validator("model")
    @classmethod
    def _known(cls, value: str) -> str:
        registry.check_name(value)
        return value

    @field_validator("density")
    @classmethod
    def _sparse(cls, value: float) -> float:
        if not value < 1:
            raise ValueError("must be below 1: at 1 whole gradients are exchanged, measure --modes dense instead")
        return value

    @field_validator("modes")
    @classmethod
    def _modes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in MODES:
                raise ValueError(f"there is no mode '{name}'{nearest(name, MODES)}")
        if not value:
            raise ValueError(f"must name at least one of {', '.join(MODES)}")
        return tuple(name for name in MODES if name in (NONE, *value))  # every figure is held against no exchange

    def check(self) -> None:
        """Raises `UsageError` where the network does not take such images. Needs no memory, but loads torchvision."""
        model = networks.build(self.model, self.size, device="meta")
        registry.check_size(model, self.model, registry.default_channels(self.model), self.size, self.size)


def run_worker(bench: ExchangeBench, seat: Seat, say: Say) -> dict[str, Any]:
    """One worker's part, in a process of its own; the same result on everyone.

    Returns `link`, `rounds` (by mode seconds of a step and bytes sent, for ours seconds by part) and `cut` (what was
    left out of which mode, in words). The process is left with one torch thread and another heap.
    """
    make_deterministic(1, torch.device("cpu"))
    keep_heap()  # of the process, so all modes gain
    whole = any(MODES[name].family == "dense" for name in bench.modes)
    gloo = whole and bench.transport in ("auto", "collectives")
    with joined(seat, bench.transport, collectives=gloo) as group:
        measured = link.as_json(group.members)
        route = group.members.transport
        say(f"link: {link.text(measured)}; our transport: {'auto' if route is None else route.value}")
        worker = _Worker(bench, group)
        plan, cut = {}, {}
        for name in bench.modes:
            first_s = worker.warm_up(MODES[name])
            plan[name] = affordable(bench.mode_limit_s, first_s, bench.rounds, bench.steps)
            if plan[name] != (bench.rounds, bench.steps):
                cut[name] = (
                    f"{name}: {counted(plan[name][0], 'round')} of {counted(plan[name][1], 'step')} instead of "
                    f"{bench.rounds} of {bench.steps}, because a step takes {first_s:.1f} s "
                    f"(limit {bench.mode_limit_s:g} s a mode)"
                )
                say(cut[name])
        rounds = []
        for number in range(bench.rounds):
            say(f"round {number + 1} of {bench.rounds}")
            present = [name for name in rotated(bench.modes, number) if number < plan[name][0]]
            rounds.append({name: worker.turn(MODES[name], plan[name][1]) for name in present})
        dist.barrier()
    return {"link": measured, "rounds": rounds, "cut": cut, "machine": {**machine(), **versions()}}


class _Worker:
    """The sides of all modes that were warmed up, and the one batch they all compute on."""

    def __init__(self, bench: ExchangeBench, group: Group) -> None:
        self._bench, self._group = bench, group
        self._sides: dict[str, Ours | DDP | NoExchange] = {}
        self._replica: Replica | None = None
        self._totals: dict[str, Total] = {}
        generator = torch.Generator().manual_seed(group.members.rank)
        channels = registry.default_channels(bench.model)
        self._batch: Batch = (
            torch.randn(bench.batch, channels, bench.size, bench.size, generator=generator),
            torch.randint(networks.classes_of(bench.model), (bench.batch,), generator=generator),
        )

    def _model(self) -> nn.Module:
        seed_everything(0)
        return networks.build(self._bench.model, self._bench.size)

    def _side(self, mode: Mode) -> Ours | DDP | NoExchange:
        if mode.family == "none":
            return NoExchange(self._model())
        if mode.family == "ddp":
            return DDP(self._model(), mode, self._bench.density)
        size, share = self._group.members.size, self._bench.batch
        settings = settings_of(mode, size, share, self._bench.density, DEADLINE_S)
        if self._replica is None:
            self._replica = Replica(self._model(), settings, self._group.members.hosted)
        # A sum of whole gradients would make the next sparse step clear it as a whole.
        if mode.family not in self._totals:
            self._totals[mode.family] = Total(self._replica.layout.numel, torch.device("cpu"))
        return Ours(self._group, self._replica, settings, self._totals[mode.family])

    def warm_up(self, mode: Mode) -> float:
        """Make a mode's side and run it in. Returns the seconds of its last step, the slowest worker's."""
        self._sides[mode.name] = self._side(mode)
        took: list[float] = [self.turn(mode, 1)["step_s"] for _ in range(mode.warm_steps)]
        return took[-1]

    def turn(self, mode: Mode, steps: int) -> dict[str, Any]:
        """So many steps of a mode, begun together. `step_s` is the time until the slowest worker was done, by steps;
        `cpu_s` processor time of all threads of a worker. That, bytes and parts are means over workers and steps."""
        # A plain script does not ask for deterministic algorithms; a run of ours does.
        torch.set_deterministic_debug_mode("error" if mode.family in ("dgc", "dense") else "default")
        side = self._sides[mode.name]
        dist.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        parts = [side.step(self._batch) for _ in range(steps)]
        own = (time.perf_counter() - start, time.process_time() - cpu, side.sent_bytes(), parts)
        everyone: list[Any] = [None] * self._group.members.size
        dist.all_gather_object(everyone, own)
        every_step = [one for *_, told in everyone for one in told]
        return {
            "step_s": max(seconds for seconds, *_ in everyone) / steps,
            "cpu_s": sum(busy for _, busy, *_ in everyone) / len(everyone) / steps,
            "bytes": round(sum(sent for _, _, sent, _ in everyone) / len(everyone)),
            "parts_s": {name: sum(one[name] for one in every_step) / len(every_step) for name in parts[0]},
        }
