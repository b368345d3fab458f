"""What attach returns: the state of compression of one rank, to be saved with every checkpoint."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from elastic_dgc.compression.layout import Layout
from elastic_dgc.ddp import checkpoint
from elastic_dgc.ddp.altered import Probe
from elastic_dgc.ddp.buckets import Arrived
from elastic_dgc.ddp.checkpoint import StateDict
from elastic_dgc.ddp.checks import not_trained
from elastic_dgc.ddp.config import DGC
from elastic_dgc.ddp.exchange import Exchange
from elastic_dgc.ddp.meeting import together
from elastic_dgc.ddp.optimizer import TakenOver
from elastic_dgc.ddp.plan import Plan, plan
from elastic_dgc.ddp.residual import Residual
from elastic_dgc.ddp.settings import settings_of
from elastic_dgc.ddp.statistics import Statistics
from elastic_dgc.log import logger


class DGCState:
    """u and v of this rank, and the counters. Made by `attach`; the hook changes it, users save, load and look.

    `steps`: applied steps. `skipped`: steps in which some rank's gradient was not finite, or the sum did not fit.
    `dense_bytes`: what the same steps would have handed to collectives without compression.
    `gradient_norm`: sqrt of the sum over ranks of the squared norms of what each contributed in the last step.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        layout: Layout,
        trained: Mapping[str, Tensor],
        config: DGC,
        exchange: Exchange,
        taken: TakenOver,
        scaler: Any,
        search_scaler: bool,
    ) -> None:
        self.config, self.exchange, self.taken, self.scaler = config, exchange, taken, scaler
        self.search_scaler = search_scaler
        self.ddp = weakref.ref(ddp)  # the reducer, in C++, holds this state: a cycle that nothing could collect
        self.layout = layout
        self.residual = Residual(self.layout, trained, taken.with_momentum)
        self.place = {id(parameter): index for index, parameter in enumerate(trained.values())}
        self.frozen = not_trained(ddp, trained)
        self.arrived: list[Arrived] = []
        self.steps = self.skipped = self.skips_in_a_row = self.dense_bytes = 0
        self.gradient_norm = 0.0
        self.pending = False  # a sum was handed out, and no optimizer step has followed
        self.statistics = Statistics(ddp)
        self.probing = True
        self.probe: Probe | None = None  # see `altered`
        self._plans: dict[float, Plan] = {}
        if self.residual.u is not None:
            taken.take_buffers(self.residual.views(self.residual.u))
        taken.watch(self._before_step, self._after_step)

    @property
    def rank(self) -> int:
        return self.exchange.rank

    @property
    def world(self) -> int:
        return self.exchange.world

    @property
    def upload_bytes(self) -> int:
        """What this rank has handed to collectives, votes and padding included."""
        return self.exchange.upload_bytes

    def plan(self) -> Plan:
        """How the next step travels."""
        density = self.config.density_after(self.steps)
        if density not in self._plans:
            self._plans[density] = plan(self.config, self.layout, self.world, density)
        return self._plans[density]

    def settings(self) -> str:
        """Everything that must be equal on all ranks, as JSON."""
        return settings_of(self.config, self.taken.optimizer, self.layout, self.world, self.scaler)

    def digest(self) -> bytes:
        """16 bytes that are equal where the settings are."""
        return hashlib.blake2b(self.settings().encode(), digest_size=16).digest()

    def state_dict(self) -> dict[str, Any]:
        """This rank's own state, copied to the CPU: every rank has to save its own. Plain types and tensors only."""
        residual = self.residual
        tensors = {"u": residual.u, "v": residual.v}
        return {
            "format": checkpoint.FORMAT,
            "rank": self.rank,
            "world": self.world,
            "applied": self.steps,
            "skipped": self.skipped,
            "fresh": self.taken.fresh,
            "upload_bytes": self.upload_bytes,
            "dense_bytes": self.dense_bytes,
            "config": self.config.model_dump(),
            "optimizer": self._kind,
            "momentum": {name: list(value) for name, value in self.taken.momentum_of().items()},
            **{
                part: {} if flat is None else {n: t.to("cpu", copy=True) for n, t in residual.views(flat).items()}
                for part, flat in tensors.items()
            },
        }

    def load_state_dict(self, state: StateDict | Sequence[StateDict]) -> None:
        """Take over this rank's own state, or, at any number of ranks, the list of all: rank j takes the sum of those
        of ranks i with i % world == j, so that the sums of u and v over ranks stay what they were. All ranks call it.

        Density and other settings may have changed since. Raises `UsageError`, with nothing changed, where a state is
        damaged, another rank's, of another world (unless all are given), another model or another momentum: on all
        ranks, if on one; and where ranks have not come after `config.deadline_s`.
        """
        residual = self.residual

        def check() -> tuple[list[StateDict], StateDict]:
            mine, common = checkpoint.choose(state, self.rank, self.world)
            for one in mine or [common]:
                checkpoint.check(one, self._kind, self.taken.momentum_of(), residual.views(residual.v))
            return mine, common

        mine, common = together(self.exchange.group, "load_state_dict", self.config.deadline_s, check)
        checkpoint.load(residual.views(residual.v), [one["v"] for one in mine])
        if residual.u is not None:
            checkpoint.load(residual.views(residual.u), [one["u"] for one in mine])
        self.steps, self.skipped, self.taken.fresh = common["applied"], common["skipped"], common["fresh"]
        self.exchange.upload_bytes = sum(one["upload_bytes"] for one in mine)
        self.dense_bytes = sum(one["dense_bytes"] for one in mine)
        self.skips_in_a_row, self.pending = 0, False
        self.statistics.drop()

    @property
    def _kind(self) -> str:
        return "SGD" if self.taken.corrected else "an optimizer with plain error feedback"

    def _before_step(self) -> None:
        problem = self.taken.problem()
        if problem is not None:
            raise problem
        if self.probe is not None and self.probe.altered():
            self.probing = False  # said once
            logger(worker=self.rank).warning("%s", self.probe.words())

    def _after_step(self) -> None:
        self.pending, self.probe = False, None

    def __repr__(self) -> str:
        return (
            f"DGCState(rank {self.rank} of {self.world}, {self.layout.numel:,} parameters, density "
            f"{self.config.density_after(self.steps):g}, step {self.steps}, {self.skipped} skipped, "
            f"{self.upload_bytes / 1e6:.4g} MB sent against {self.dense_bytes / 1e6:.4g} MB dense)"
        )
