"""How faults come about: somebody comes to a point, and something happens to somebody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from elastic_dgc.membership import actions as do
from elastic_dgc.membership import control as say
from elastic_dgc.protocol.wait import Out, Wait
from elastic_dgc.simulation.faults import ANYBODY, SENT, Fault
from elastic_dgc.simulation.processes import Crashed, Hung, WorkerProcess
from elastic_dgc.simulation.setting import HEAD

if TYPE_CHECKING:
    from elastic_dgc.simulation.world import World

ENDS = frozenset({"crash", "node", "all", "all and coordinator", "every node", "poison"})
COUNTED = (do.Persist, do.Send, do.End, do.Finished)  # actions that others can tell whether they happened
_UNCOUNTED = (say.BeatSeen,)


class Strikes:
    """`waiting` are the faults that have not happened, `fired` those that have."""

    def __init__(self, world: World, faults: Sequence[Fault]) -> None:
        self.world = world
        self.waiting = list(faults)
        self.fired: list[Fault] = []
        self._actions = 0

    def at_point(self, process: WorkerProcess, point: str, attempt: int) -> None:
        """Raises `Crashed` where the process is to end, `Hung` where its training thread does."""
        if point in SENT:
            return
        for fault in self._due(process, point, attempt):
            if fault.kind == "hang":
                raise Hung
            if self._happen(process, fault):
                raise Crashed

    def while_sending(self, process: WorkerProcess, wait: Wait) -> tuple[Sequence[Out], bool]:
        """What of this wait's letters is still sent, and whether the process ends there."""
        if wait.sent_point is None or process.member is None:
            return wait.send, False
        if wait.sent_point == "exchange":
            self.world.watch.share(process)
        for fault in self._due(process, wait.sent_point, process.member.decided):
            if fault.kind in ENDS and self._target(process, fault) is process:
                process.send(wait.send[: fault.reached])
                return (), self._happen(process, fault)
            if fault.kind in ("drop", "one-way", "partition"):  # what was sent just now is lost with it
                process.send(wait.send)
                self._happen(process, fault)
                return (), False
            if fault.kind == "lose":
                return [out for out in wait.send if out.to != self.world.platform.workers[fault.other].address], False
            self._happen(process, fault)
        return wait.send, False

    def before_action(self, action: do.Action) -> None:
        """Between two actions of the coordinator it may end."""
        if not isinstance(action, COUNTED) or (isinstance(action, do.Send) and isinstance(action.message, _UNCOUNTED)):
            return
        for fault in [one for one in self.waiting if one.point == "action" and len(self.fired) >= one.after]:
            if self._actions == fault.reached:
                self._fire(fault)
                self.world.platform.end_coordinator()
            self._actions += 1

    def _due(self, process: WorkerProcess, point: str, attempt: int) -> list[Fault]:
        def fits(one: Fault) -> bool:
            here = one.point == point and one.worker in (ANYBODY, process.number)
            whose = one.kind != "poison" or process.agent.doing[2] == one.reached
            return here and whose and one.attempt in (None, attempt) and len(self.fired) >= one.after

        found = [one for one in self.waiting if fits(one)]
        for one in found:
            self._fire(one)
        return found

    def _fire(self, fault: Fault) -> None:
        if fault.kind != "poison":
            self.waiting.remove(fault)
        self.fired.append(fault)

    def _target(self, process: WorkerProcess, fault: Fault) -> WorkerProcess:
        return process if fault.strikes is None else self.world.platform.workers[fault.strikes]

    def _happen(self, process: WorkerProcess, fault: Fault) -> bool:
        """Returns whether the process that came to the point is to end by it."""
        world, platform = self.world, self.world.platform
        target = self._target(process, fault)
        node, soon = target.node, partial(world.clock.after, 0.0)
        if fault.kind in ENDS:
            if fault.kind == "node":
                platform.lose_node(node, fault.lasts_s)
            elif fault.kind == "every node":
                for each in dict.fromkeys(worker.node for worker in platform.workers if worker.alive):
                    platform.lose_node(each, fault.lasts_s)
            elif fault.kind in ("all", "all and coordinator"):
                for one in platform.workers:
                    if one is not process:
                        soon(partial(one.end, "crashed"))
                if fault.kind == "all and coordinator":
                    soon(platform.end_coordinator)
            elif target is not process:
                soon(partial(target.end, "crashed"))
            return target is process or not process.alive or fault.kind in ("all", "all and coordinator", "every node")
        if fault.kind in ("freeze", "stuck"):
            target.frozen, target.unkillable = True, fault.kind == "stuck"
            world.clock.after(fault.lasts_s, target.thaw)
        elif fault.kind == "away":
            coordinator = platform.coordinator
            coordinator.frozen = True
            world.clock.after(fault.lasts_s, coordinator.thaw)
        elif fault.kind == "drop":
            world.network.drop(target.address, platform.workers[fault.other].address)
        elif fault.kind in ("one-way", "partition", "head"):
            world.network.cut_off(self._pairs(node, fault), fault.lasts_s)
        elif fault.kind == "keeper":
            soon(platform.keepers[node].end)
        elif fault.kind == "coordinator":
            soon(platform.end_coordinator)
        elif fault.kind == "join":
            soon(partial(platform.start_worker, platform.workers[fault.other].node))
        elif fault.kind == "leave":
            soon(target.leave)
        elif fault.kind == "damage":
            self._damage(node, every=bool(fault.reached))
        elif fault.kind == "spoil":
            world.durable.damage(f"owned-{fault.reached}")
        return False

    def _pairs(self, node: str, fault: Fault) -> set[tuple[str, str]]:
        if fault.kind == "one-way":
            there = self.world.platform.workers[fault.other].node
            return {(node, there)} - {(node, node)}
        others = {HEAD} if fault.kind == "head" else {e.node for e in self.world.network.endpoints.values()} - {node}
        return {pair for other in others for pair in ((node, other), (other, node))}

    def _damage(self, node: str, every: bool) -> None:
        """Of each virtual worker the newest piece of all, or the newest of each chunk and the buffers."""
        for copy in self.world.platform.keepers[node].keeper.rolling.values():
            for kept in (*copy._chunks, copy._buffers):
                if kept and (every or (kept[-1].index >= 0 and kept[-1].tag == copy.newest_tag)):
                    payload = bytes((kept[-1].payload[0] ^ 1,)) + kept[-1].payload[1:]
                    kept[-1] = replace(kept[-1], payload=payload)
