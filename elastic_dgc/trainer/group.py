"""A worker's group: its members, its transport, and what workers tell each other between attempts."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from elastic_dgc import faults
from elastic_dgc.errors import PeerLost, error_named
from elastic_dgc.exchange.ask import Ask, Key, Kind, Payload, Steps, drive, parcels
from elastic_dgc.exchange.collectives import CollectiveTransport, open_gloo, open_store
from elastic_dgc.exchange.gather import gather_virtual, gather_workers
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.probe import LARGE_BYTES, measure_link
from elastic_dgc.exchange.routes import Route, Topology
from elastic_dgc.exchange.tcp import TcpTransport
from elastic_dgc.exchange.transport import Transport
from elastic_dgc.log import logger

T = TypeVar("T")


class Group:
    """Everything here must be entered by all workers of the view alike, at the same boundary (R5)."""

    def __init__(self, members: Members, transport: Transport, view: int, deadline_s: float) -> None:
        self.members, self.transport, self.view, self.deadline_s = members, transport, view, deadline_s
        self.attempt = -1  # the boundary we are at; part of every key
        self._asked = 0

    @property
    def leads(self) -> bool:
        """Rank 0: the one that writes what exists once."""
        return self.members.rank == 0

    def run(self, steps: Steps[T]) -> T:
        """Drive a protocol generator over the transport."""
        return drive(steps, self.transport, self._sent)

    def learn_link(
        self, hosts: tuple[str, ...], transport: str, collectives: tuple[str, float] | None, numel: int = 1 << 18
    ) -> None:
        """Measure the link (with frames as large as `numel` parameters are, at most a MiB) between the workers, whose
        host names by rank are given, and let it, or the user's choice of
        a `transport`, decide the routes from now on. `collectives`: this worker's own address, and a deadline in
        seconds, where gloo may be used beside the frames."""
        topology = Topology.of(hosts)
        library = collectives is not None and self.members.size > 1 and self._open_collectives(*collectives)
        large_bytes = min(LARGE_BYTES, max(LARGE_BYTES // 16, 4 * numel))
        steps = measure_link(
            self.members, topology, self.attempt, time.perf_counter, self.deadline_s, library, large_bytes
        )
        link = self.run(steps)
        if library and link is not None and isinstance(self.transport, CollectiveTransport):
            self.transport.least_bytes_per_s = link.slowest.bytes_per_s / 10
        chosen = None if transport == "auto" else Route(transport)
        self.members = replace(self.members, topology=topology, link=link, transport=chosen)

    def _open_collectives(self, host: str, deadline_s: float) -> bool:
        """Set gloo up beside the frames, on everyone or on nobody. Returns whether it is there."""
        rank, frames = self.members.rank, self.transport
        assert isinstance(frames, TcpTransport)
        store: Any = None
        gloo: Any = None
        reason = None
        try:
            store = open_store(host, deadline_s) if self.leads else None
        except (RuntimeError, ValueError) as error:
            reason = str(error)
        address = self.gather([host, store.port] if store is not None else None, "setting up collectives")[0]
        if address is not None:
            try:
                place = store if store is not None else (address[0], address[1])
                gloo = open_gloo(place, host, rank, self.members.size, self.view, self.deadline_s)
            except (RuntimeError, ValueError) as error:
                reason = str(error)
        reasons = self.gather(None if gloo is not None else (reason or "no store"), "setting up collectives")
        failed = [(r, why) for r, why in enumerate(reasons) if why is not None]
        if failed:
            logger(worker=rank).log(
                logging.WARNING if self.leads else logging.DEBUG,
                "no library collectives, everything goes by frames: worker %d: %s", failed[0][0],
                failed[0][1].splitlines()[0],
            )  # fmt: skip
            return False
        self.transport = CollectiveTransport(frames, gloo, deadline_s)
        return True

    def fault(self, point: str, attempt: int | None = None) -> None:
        """A place where a fault may be injected."""
        at = self.attempt if attempt is None else attempt
        faults.reach(point, view=self.view, attempt=at, worker=self.members.rank)

    def gather(self, own: Any, phase: str) -> list[Any]:
        """One JSON value per worker reaches everyone; by rank."""
        return self.run(self.gathering(own, phase))

    def gathering(self, own: Any, phase: str) -> Steps[list[Any]]:
        """`gather` as steps of a protocol."""
        self._asked += 1
        got = yield from gather_workers(
            self.members, Kind.CONTROL, self.attempt, json.dumps(own).encode(), phase=phase,
            deadline_s=self.deadline_s, part=self._asked,
        )  # fmt: skip
        return [json.loads(bytes(one)) for one in got]

    def handing(self, payload: Payload | None, source: int, to: Sequence[int], phase: str) -> Steps[Payload | None]:
        """One payload goes from a worker to some others, as steps of a protocol; it is None elsewhere. Returns it
        where it was sent to, None on all others."""
        self._asked += 1
        key = Key(Kind.DIGEST, self.attempt, -1 - source, self._asked)
        rank = self.members.rank
        send = () if payload is None else parcels(to, key, payload)
        got = yield Ask(send, {key: source} if rank in to else {}, phase, self.deadline_s)
        return got[key] if rank in to else None

    def gather_virtual(self, kind: Kind, own: Mapping[int, Payload], phase: str) -> list[Payload]:
        """One payload per virtual worker reaches everyone; in virtual-worker order."""
        return self.run(gather_virtual(self.members, kind, self.attempt, own, phase=phase, deadline_s=self.deadline_s))

    def together(self, what: str, do: Callable[[], T]) -> T:
        """Do something that may fail on one worker alone. If it fails anywhere, everyone raises: its own error where
        it failed, the same kind of error with the same text elsewhere, and the place."""
        value: T | None = None
        error: Exception | None = None
        try:
            value = do()
        except PeerLost:
            raise
        except Exception as raised:  # noqa: BLE001 - whatever it is, the others must hear of it before it goes on
            error = raised
        told = self.gather(None if error is None else [type(error).__name__, str(error)], what)
        if error is not None:
            raise error
        for rank, failure in enumerate(told):
            if failure is not None:
                raise error_named(failure[0])(f"{failure[1]} (on worker {rank}, in {what})")
        return value  # type: ignore[return-value]

    def _sent(self, ask: Ask) -> None:
        if ask.sent_point is not None:
            self.fault(ask.sent_point)
