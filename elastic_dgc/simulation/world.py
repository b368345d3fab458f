"""A simulated cluster: its clock, its network, its processes, what goes wrong with them, and who watches."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_dgc.membership.roster import View
from elastic_dgc.membership.settings import CoordinatorSettings
from elastic_dgc.simulation.clock import Clock
from elastic_dgc.simulation.durable import MemoryDurable
from elastic_dgc.simulation.faults import Fault
from elastic_dgc.simulation.network import Network
from elastic_dgc.simulation.platform import Platform
from elastic_dgc.simulation.setting import Setting
from elastic_dgc.simulation.striking import Strikes
from elastic_dgc.simulation.watching import Watch

TOLD_S = 0.01  # until the coordinator knows of a checkpoint


class World:
    """`run` plays it; what happened is in its parts. `said`: what the coordinator told people, (time, level, text)."""

    def __init__(self, setting: Setting, faults: Sequence[Fault] = (), seed: int = 0) -> None:
        self.setting = setting
        self.coordinator_settings = CoordinatorSettings(
            virtual_workers=setting.recipe.virtual_workers, min_workers=setting.min_workers,
            max_workers=len(setting.nodes) + setting.room, exact=not setting.fast, strict=setting.strict,
        )  # fmt: skip
        self.ends = 0  # of workers, of the coordinator's work
        self._ends_known = 0
        self.clock = Clock(seed)
        self.network = Network(self.clock)
        self.durable = MemoryDurable()
        self.said: list[tuple[float, str, str]] = []
        self.watch = Watch(self)
        self.strikes = Strikes(self, faults)
        self.platform = Platform(self)
        self.durable.told = lambda view, attempt: self.platform.tell(
            lambda machine: machine.checkpoint_written(view, attempt), TOLD_S
        )

    def run(self) -> bool:
        """Play it. Returns whether it came to an end: every process that is still in the run is done."""
        self.platform.start()
        over = self.clock.run(self._over, self.setting.limit_s)
        self.clock.run(lambda: bool(self.platform.coordinator.finished), self.clock.now + 2.0)
        if over and self.setting.to_the_last:
            return self.clock.run(lambda: not any(one.alive for one in self.platform.workers), self.setting.limit_s)
        return over

    @property
    def views(self) -> list[View]:
        return [one for one in self.platform.records if isinstance(one, View)]

    def _over(self) -> bool:
        if self.ends == self._ends_known:  # nothing ends it but an end
            return False
        self._ends_known = self.ends
        workers = self.platform.workers
        if any(one.ended == "error" for one in workers):
            return True
        if self.platform.coordinator.finished and not any(one.alive for one in workers):
            return True
        if not any(one.ended == "done" for one in workers):
            return False
        view = next(one for one in reversed(self.platform.records) if isinstance(one, View))
        return not any(one.alive and one.address in view.uids for one in workers)
