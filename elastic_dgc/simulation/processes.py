"""The processes of a simulated run: workers, keepers, the coordinator. Each is the real state machine and a mailbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from elastic_dgc.membership import actions as do
from elastic_dgc.membership import control as say
from elastic_dgc.membership.coordinator import Coordinator
from elastic_dgc.membership.records import Record
from elastic_dgc.membership.roster import Worker
from elastic_dgc.protocol.agent import Agent
from elastic_dgc.protocol.keeper import Keeper
from elastic_dgc.protocol.letters import Fetch
from elastic_dgc.protocol.member import Member
from elastic_dgc.protocol.wait import COORDINATOR, Life, Out, Over, Wait, keeper_of
from elastic_dgc.simulation.setting import HEAD

if TYPE_CHECKING:
    from elastic_dgc.simulation.world import World


class Crashed(Exception):
    """Raised in the training thread where its process is to end."""


class Hung(Exception):
    """Raised in the training thread where it is to stand still for ever."""


class Process:
    """What all of them have: they hear while they live, and later while they are frozen."""

    def __init__(self, world: World, address: str, node: str) -> None:
        self.world, self.address, self.node = world, address, node
        self.alive, self.frozen = True, False
        self._unheard: list[Callable[[], None]] = []

    def when_awake(self, what: Callable[[], None]) -> None:
        """Now; or when it wakes up; never, where it is dead."""
        if self.frozen:
            self._unheard.append(what)
        elif self.alive:
            what()

    def thaw(self) -> None:
        self.frozen = False
        unheard, self._unheard = self._unheard, []
        for what in unheard:
            self.when_awake(what)

    def send(self, outs: Sequence[Out]) -> None:
        for out in outs:
            self.world.network.send(self.address, out.to, out.letter)

    def closed(self, peer: str) -> None:
        """A connection ended."""


class WorkerProcess(Process):
    """A training process: its agent hears, its life is run from wait to wait."""

    def __init__(self, world: World, me: Worker, number: int) -> None:
        super().__init__(world, me.uid, me.node)
        self.me, self.number = me, number
        self.leaving = False
        self.unkillable = False  # from afar
        self.agent = Agent(me)
        self.member: Member | None = None
        self.ended: str | None = None  # how its life ended: 'done', 'crashed', an `Over.kind`, or an error
        self.error: Exception | None = None
        self._life: Life[None] | None = None
        self._wait: Wait | None = None
        self._wait_id = 0
        self._since = 0.0
        self._thawed_at = 0.0
        self._coordinator_heard = world.clock.now

    def start(self, member: Member) -> None:
        self.member = member
        self._life = member.run()
        self._beat()
        self._resume(None)

    def hear(self, sender: str, letter: object) -> None:
        self.when_awake(lambda: self._hear(sender, letter))

    def _hear(self, sender: str, letter: object) -> None:
        refused = len(self.agent.post.refused)
        if sender == COORDINATOR:
            self._coordinator_heard = self.world.clock.now
        self.send(self.agent.hear(sender, letter))
        self.world.watch.delivered(self, letter, refused)
        self._poke()

    def closed(self, peer: str) -> None:
        self.when_awake(lambda: self.send(self.agent.suspect(peer, "the connection ended")))

    def end(self, how: str, error: Exception | None = None) -> None:
        """The process is gone. Its node's keeper has its memory."""
        if not self.alive:
            return
        self.alive, self.ended, self.error, self._wait = False, how, error, None
        self.world.ends += 1
        if self._life is not None and how != "done":
            self._life = None  # not closed: a process that is killed runs no `finally`
        if self.node not in self.world.network.down:
            self.world.network.ended(self.address)
        self.world.platform.worker_ended(self, how)

    def leave(self) -> None:
        """It is told that it has to go."""
        self.leaving = True
        self.send(self.agent.leave("a drain notice"))

    # --- the training thread

    def _resume(self, value: bool | None) -> None:
        life = self._life
        if life is None or not self.alive:
            return
        self._wait = None
        try:
            wait = next(life) if value is None else life.send(value)
        except StopIteration:
            self.end("done")
        except Crashed:
            self.end("crashed")
        except Hung:
            self._life = None
        except Over as over:
            self.end(over.kind)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the process, and the scenario tells it
            self.end("error", error)
        else:
            if self.alive:
                compute_s = self.world.setting.compute_s
                delay_s = self.world.clock.rng.uniform(0.0, compute_s) if wait.phase in ("vote", "exchange") else 0.0
                self.world.clock.after(delay_s, lambda: self.when_awake(lambda: self._emit(wait)))

    def _emit(self, wait: Wait) -> None:
        outs, ends = self.world.strikes.while_sending(self, wait)
        for out in outs:
            self.world.watch.sent(self, out)
        self.send(outs)
        if ends:
            self.end("crashed")
            return
        if wait.meanwhile is not None:
            wait.meanwhile()
        self._wait, self._since = wait, self.world.clock.now
        self._wait_id += 1
        number = self._wait_id
        self.world.clock.after(wait.deadline_s, lambda: self.when_awake(lambda: self._late(number)))
        self._poke()

    def _poke(self) -> None:
        if self.alive and not self.frozen and self._wait is not None and self._wait.until():
            self._waited(self._wait)
            self._wait = None
            self.world.clock.after(0.0, lambda: self.when_awake(lambda: self._resume(True)))

    def _late(self, number: int) -> None:
        if self.alive and self._wait is not None and self._wait_id == number:
            self._waited(self._wait)
            self._resume(self._wait.until())

    def _waited(self, wait: Wait) -> None:
        if self._thawed_at <= self._since:  # else it may have slept through its deadline
            self.world.watch.waited(self, wait.phase, wait.deadline_s, self.world.clock.now - self._since)

    def thaw(self) -> None:
        self._thawed_at = self.world.clock.now
        super().thaw()

    def _beat(self) -> None:
        if not self.alive:
            return
        self.world.clock.after(self.world.setting.limits.beat_s, self._beat)
        if self.frozen:
            return
        now, limits = self.world.clock.now, self.world.setting.limits
        self.send([self.agent.beat()])
        silence_s = now - self._coordinator_heard
        if silence_s > limits.coordinator_s:
            self.agent.coordinator_silent()
        if silence_s > limits.alone_s and self._wait is not None and now - self._since > limits.alone_s:
            self.agent.over = self.agent.over or ("alone", "neither the coordinator nor the whole view can be reached")
            self._poke()


class KeeperProcess(Process):
    """A node's keeper."""

    def __init__(self, world: World, keeper: Keeper) -> None:
        super().__init__(world, keeper_of(keeper.node), keeper.node)
        self.keeper = keeper
        self._beat()

    def hear(self, sender: str, letter: object) -> None:
        self.when_awake(lambda: self._hear(sender, letter))

    def _hear(self, sender: str, letter: object) -> None:
        keeper, watch = self.keeper, self.world.watch
        number, refused = keeper.number, keeper.refused
        slot = keeper.slots.get(letter.virtual_worker) if isinstance(letter, Fetch) else None
        offered = keeper.offered.get(letter.virtual_worker) if isinstance(letter, Fetch) else None
        owners = [slot.uid] if slot is not None and not letter.rolling else []  # type: ignore[attr-defined]
        owners += [offered[0]] if offered is not None and not letter.rolling else []  # type: ignore[attr-defined]
        outs = keeper.hear(sender, letter)
        watch.kept(self, letter, number, refused)
        watch.served(self, letter, owners, outs)
        self.send(outs)

    def end(self) -> None:
        """It dies; the memory it shared stays with the training processes that map it."""
        if self.alive:
            self.alive = False
            self.world.platform.keeper_ended(self)

    def _beat(self) -> None:
        if self.alive:
            self.world.clock.after(self.world.setting.limits.beat_s, self._beat)
            if not self.frozen:
                self.send([Out(COORDINATOR, say.Beat(self.address, self.keeper.number))])


class CoordinatorProcess(Process):
    """The coordinator, and what it wrote down: `records` outlive it."""

    def __init__(self, world: World, records: list[Record]) -> None:
        super().__init__(world, COORDINATOR, HEAD)
        self.records = records
        self.machine = Coordinator(world.coordinator_settings, world.setting.limits, records)
        self.finished = ""
        self._timers: dict[str, int] = {}
        self._set_so_far = 0

    def start(self) -> None:
        for view, attempt in self.world.durable.written:
            self.act(self.machine.checkpoint_written(view, attempt))
        for node in self.world.platform.nodes_with_keeper:
            self.act(self.machine.keeper_there(node))
        self.act(self.machine.start())

    def hear(self, sender: str, letter: object) -> None:
        self.when_awake(lambda: self.act(self.machine.handle(letter)))  # type: ignore[arg-type]

    def platform(self, event: Callable[[Coordinator], list[do.Action]]) -> None:
        """Something that the platform saw."""
        self.when_awake(lambda: self.act(event(self.machine)))

    def act(self, found: Sequence[do.Action]) -> None:
        """In order; the process may be gone between any two."""
        for action in found:
            if not self.alive:
                return
            self.world.strikes.before_action(action)
            if not self.alive:
                return
            match action:
                case do.Persist():
                    self.records.append(action.record)
                case do.Send():
                    self.world.network.send(self.address, action.to, action.message)
                case do.End():
                    self.world.platform.end_worker_from_afar(action.uid)
                case do.SetTimer():
                    self._set(action.name, action.after_s)
                case do.CancelTimer():
                    self._timers.pop(action.name, None)
                case do.Say():
                    self.world.said.append((self.world.clock.now, action.level, action.text))
                case do.Finished():
                    self.finished = action.reason
                    self.world.ends += 1
                    self._timers.clear()

    def end(self) -> None:
        self.alive = False

    def _set(self, name: str, after_s: float) -> None:
        self._set_so_far += 1
        number = self._timers[name] = self._set_so_far
        self.world.clock.after(after_s, lambda: self.when_awake(lambda: self._ring(name, number)))

    def _ring(self, name: str, number: int) -> None:
        if self._timers.get(name) == number:
            del self._timers[name]
            self.act(self.machine.timer(name))
