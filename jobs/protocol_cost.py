"""What the protocol costs where nothing fails: the share of a step's processor time that is spent in it.

    python jobs/protocol_cost.py

ResNet-20 on images out of the seed, K = 8 on two workers of two nodes, all in one process and in virtual time: the real
workers, keepers and coordinator, with a snapshot's chunk to the buddy after every attempt. Counted as protocol is
everything but the attempt itself (forward, backward, compression, sum, update): waits, frames, heartbeats, the log, the
ledger, snapshots and their checksums. What a network would take is not in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import click
import torch
from torch import Tensor, nn

from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.models.registry import build
from elastic_dgc.protocol import life
from elastic_dgc.protocol.member import Member
from elastic_dgc.seeds import seed_everything
from elastic_dgc.simulation import platform
from elastic_dgc.simulation.setting import Setting
from elastic_dgc.simulation.striking import Strikes
from elastic_dgc.simulation.training import Recipe, Training
from elastic_dgc.simulation.watching import Watch
from elastic_dgc.simulation.world import World
from elastic_dgc.step.compute import MicroBatch
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.settings import StepSettings

VIRTUAL_WORKERS = 8
WARM = 3  # attempts that are not counted


class Spent:
    """Processor time by part: what is spent inside an inner part does not count for the outer one."""

    def __init__(self) -> None:
        self.seconds = {"step": 0.0, "protocol": 0.0, "simulation": 0.0}
        self._stack: list[tuple[str, float]] = []

    def enter(self, part: str) -> None:
        now = time.process_time()
        if self._stack:
            outer, since = self._stack[-1]
            self.seconds[outer] += now - since
        self._stack.append((part, now))

    def leave(self) -> None:
        now = time.process_time()
        part, since = self._stack.pop()
        self.seconds[part] += now - since
        if self._stack:
            self._stack[-1] = (self._stack[-1][0], now)

    def within(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time counted as this part's."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return timed

    def generator(self, part: str, steps: Any) -> Any:
        """The same for a generator."""
        found, thrown = None, None
        while True:
            self.enter(part)
            try:
                ask = steps.throw(thrown) if thrown is not None else steps.send(found)
            except StopIteration as stop:
                return stop.value
            finally:
                self.leave()
            if ask.meanwhile is not None:
                ask = replace(ask, meanwhile=self.within(part, ask.meanwhile))
            found, thrown = None, None
            try:
                found = yield ask
            except Exception as error:  # noqa: BLE001 - it is handed on
                thrown = error


class Images(Training):
    """ResNet-20 on 32x32 images."""

    batch = 128

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.settings = StepSettings(
            virtual_workers=VIRTUAL_WORKERS, share=self.batch // VIRTUAL_WORKERS, steps_per_epoch=100, epochs=1, seed=1,
            optimizer=OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=1e-4),
            schedule=ScheduleConfig(kind="cosine"), compression=CompressionConfig(warmup=()),
        )  # fmt: skip

    def replica(self, hosted: Iterable[int]) -> Replica:
        seed_everything(1)
        return Replica(build("resnet20", 10), self.settings, hosted)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def batches(self, attempt: int, virtual_worker: int) -> Sequence[MicroBatch]:
        share = self.settings.share
        generator = torch.Generator().manual_seed(attempt * 1000 + virtual_worker)
        x = torch.randn(share, 3, 32, 32, generator=generator)
        return [MicroBatch((x, torch.randint(0, 10, (share,), generator=generator)), share)]

    def due(self, decided: int) -> Sequence[str]:
        return ()


@click.command(help=__doc__)
@click.option("--attempts", default=35, show_default=True, help="The first 3 are not counted.")
@click.option("--batch", default=128, show_default=True, help="Over all 8 virtual workers.")
@click.option("--chunks", default=16, show_default=True, help="S: attempts in a round of the rolling snapshot.")
def main(attempts: int, batch: int, chunks: int) -> None:
    torch.set_num_threads(1)
    Images.batch = batch
    spent = Spent()
    platform.Training = Images  # type: ignore[misc]
    attempt = life.attempt
    life.attempt = lambda *args, **kwargs: spent.generator("step", attempt(*args, **kwargs))  # type: ignore[assignment]
    for name in ("enter", "prepared", "row", "message"):  # what the step calls of the protocol
        setattr(Member, name, spent.within("protocol", getattr(Member, name)))
    for watcher in (Watch, Strikes):  # what only a simulation does
        for name, function in list(vars(watcher).items()):
            if callable(function) and not name.startswith("_"):
                setattr(watcher, name, spent.within("simulation", function))
    recipe = Recipe(virtual_workers=VIRTUAL_WORKERS, attempts=attempts)
    world = World(Setting(recipe, nodes=("a", "b"), chunks=chunks, budget_bytes=1 << 30, limit_s=1e6))
    warm = dict.fromkeys(spent.seconds, 0.0)

    def over() -> bool:
        done = min((one.member.decided for one in world.platform.workers if one.member is not None), default=0)
        if done >= WARM and not any(warm.values()):
            warm.update(spent.seconds)
        return bool(World._over(world))

    spent.enter("protocol")
    world.platform.start()
    world.clock.run(over, world.setting.limit_s)
    spent.leave()
    workers = world.platform.workers
    if any(one.ended != "done" for one in workers):
        raise SystemExit(f"the run came to no end: {[one.ended for one in workers]}")
    step, protocol = (spent.seconds[part] - warm[part] for part in ("step", "protocol"))
    counted = (attempts - WARM) * len(workers)
    click.echo(
        f"{attempts - WARM} attempts of {batch} images on {len(workers)} workers: "
        f"{1000 * step / counted:.1f} ms of processor time a step and worker, "
        f"{1000 * protocol / counted:.2f} ms in the protocol: {100 * protocol / step:.2f} %"
    )


if __name__ == "__main__":
    main()
