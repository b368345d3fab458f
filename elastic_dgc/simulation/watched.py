"""A member whose steps a simulation writes down: it does what any member does, and tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_dgc.membership.roster import View
from elastic_dgc.protocol.keeper import Keeper
from elastic_dgc.protocol.member import Member
from elastic_dgc.simulation.durable import MemoryDurable
from elastic_dgc.simulation.setting import Setting
from elastic_dgc.simulation.training import Training
from elastic_dgc.step.log import Entry
from elastic_dgc.step.settings import FaultHook

if TYPE_CHECKING:
    from elastic_dgc.simulation.processes import WorkerProcess
    from elastic_dgc.simulation.watching import Watch


class WatchedMember(Member):
    """One process's."""

    def __init__(
        self,
        process: WorkerProcess,
        training: Training,
        durable: MemoryDurable,
        keeper: Keeper,
        watch: Watch,
        setting: Setting,
        fault: FaultHook,
    ) -> None:
        super().__init__(process.agent, training, durable, keeper, setting.limits, fast=setting.fast, fault=fault)
        self._process, self._watch = process, watch

    def enter(self, entry: Entry) -> None:
        self._watch.entered(self._process, entry)
        super().enter(entry)

    def installed(self, view: View) -> None:
        super().installed(view)
        self._watch.installed(self._process, view)
