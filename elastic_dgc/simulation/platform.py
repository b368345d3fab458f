"""What starts processes and sees them end: the cluster's side of a simulated run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastic_dgc.membership.coordinator import Coordinator
from elastic_dgc.membership.records import Record
from elastic_dgc.membership.roster import Worker
from elastic_dgc.protocol.keeper import Keeper
from elastic_dgc.protocol.wait import COORDINATOR, keeper_of
from elastic_dgc.simulation.processes import CoordinatorProcess, KeeperProcess, WorkerProcess
from elastic_dgc.simulation.setting import HEAD
from elastic_dgc.simulation.training import Training
from elastic_dgc.simulation.watched import WatchedMember

if TYPE_CHECKING:
    from elastic_dgc.simulation.world import World

SEEN_S = 0.5  # until the coordinator is told of a process that ended
REPLACED_S = 4.0  # until another process is there in a lost one's place
RESTARTED_S = 2.0  # until a coordinator or keeper is back
RUN = "run"


class Platform:
    """`workers` are all that ever were, in the order in which they were started; `keepers` the present ones by node;
    `records` what the coordinator wrote down."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.records: list[Record] = []
        self.workers: list[WorkerProcess] = []
        self.keepers: dict[str, KeeperProcess] = {}
        self.coordinator = CoordinatorProcess(world, self.records)
        self._due: Counter[str] = Counter()  # workers to start on nodes that are down, once those are back

    def start(self) -> None:
        setting = self.world.setting
        for node in dict.fromkeys(setting.nodes):
            self.start_keeper(node)
        self._start_coordinator(self.coordinator)
        for node in setting.nodes:
            self.start_worker(node)

    def start_worker(self, node: str) -> None:
        world = self.world
        if node in world.network.down:
            self._due[node] += 1
            return
        if node not in self.keepers:
            self.start_keeper(node)
        process = WorkerProcess(world, Worker(f"w{len(self.workers)}", node, world.setting.capacity), len(self.workers))
        self.workers.append(process)
        world.network.endpoints[process.address] = process

        def fault(point: str, attempt: int) -> None:
            world.strikes.at_point(process, point, attempt)

        training = Training(
            world.setting.recipe, world.durable,
            lambda attempt, replica, outcome: world.watch.decided(process, attempt, replica, outcome), fault,
        )  # fmt: skip
        keeper = self.keepers[node].keeper
        process.start(WatchedMember(process, training, world.durable, keeper, world.watch, world.setting, fault))

    def start_keeper(self, node: str) -> None:
        """Also in the place of one that died: it gets the memory that the node's processes map."""
        setting = self.world.setting
        keeper = Keeper(node, RUN, setting.budget_bytes, setting.chunks, self.end_worker)
        process = self.keepers[node] = KeeperProcess(self.world, keeper)
        self.world.network.endpoints[keeper_of(node)] = process
        for worker in self.workers:
            if worker.node == node and worker.alive and worker.member is not None:
                worker.member.attach(keeper)
        self.tell(lambda machine: machine.keeper_there(node))

    @property
    def nodes_with_keeper(self) -> list[str]:
        return [node for node, one in self.keepers.items() if one.alive and node not in self.world.network.down]

    def tell(self, event: Callable[[Coordinator], Any], after_s: float = 0.0) -> None:
        """The coordinator of then hears of it."""
        self.world.clock.after(after_s, lambda: self.coordinator.platform(event))

    # --- ends

    def worker_ended(self, process: WorkerProcess, how: str) -> None:
        """Seen where its node lives. One that was lost, or was taken to be, gets a successor."""
        if process.node in self.world.network.down:
            return
        last = process.agent.beat().letter
        self.tell(lambda machine: machine.died(process.address, last), SEEN_S)  # type: ignore[arg-type]
        where = self.world.setting.replace
        if how not in ("done", "stopped", "error") and where != "never" and not process.leaving:
            start = self.start_worker if where == "here" else self._start_elsewhere
            self.world.clock.after(REPLACED_S, lambda: start(process.node))

    def _start_elsewhere(self, node: str) -> None:
        """On a node of its own that is up."""
        node += "+"
        while node in self.world.network.down:
            node += "+"
        self.start_worker(node)

    def end_worker(self, uid: str) -> None:
        """By its node's keeper: gone when this returns."""
        for one in self.workers:
            if one.address == uid and one.alive:
                one.end("killed")

    def end_worker_from_afar(self, uid: str) -> None:
        """By the coordinator, where its node can be reached."""
        unkillable = any(one.address == uid and one.unkillable for one in self.workers)
        if self.world.network.passes(COORDINATOR, uid) and not unkillable:
            self.end_worker(uid)

    def keeper_ended(self, process: KeeperProcess) -> None:
        self.tell(lambda machine: machine.keeper_died(process.node), SEEN_S)
        self.world.clock.after(RESTARTED_S, lambda: self._keeper_again(process.node))

    def _keeper_again(self, node: str) -> None:
        if node not in self.world.network.down and not self.keepers[node].alive:
            self.start_keeper(node)

    def end_coordinator(self) -> None:
        if self.coordinator.alive:
            self.coordinator.end()
            self.world.clock.after(RESTARTED_S, lambda: self._start_coordinator(None))

    def _start_coordinator(self, process: CoordinatorProcess | None) -> None:
        self.coordinator = process or CoordinatorProcess(self.world, self.records)
        self.world.network.endpoints[COORDINATOR] = self.coordinator
        self.coordinator.start()

    def lose_node(self, node: str, lasts_s: float) -> None:
        """With all that runs there. It comes back after a while, with nothing; what ran there gets successors."""
        world = self.world
        world.network.down.add(node)
        lost = [one for one in self.workers if one.node == node and one.alive]
        for one in lost:
            world.clock.after(0.0, lambda one=one: one.end("crashed"))  # type: ignore[misc]
        self.keepers[node].alive = False

        def again() -> None:
            world.network.down.discard(node)
            self.start_keeper(node)
            for _ in range(self._due.pop(node, 0) + (len(lost) if world.setting.replace == "here" else 0)):
                self.start_worker(node)

        world.clock.after(lasts_s, again)
        if world.setting.replace == "elsewhere":
            for _ in lost:
                world.clock.after(REPLACED_S, lambda: self._start_elsewhere(node))


__all__ = ["HEAD", "Platform"]
