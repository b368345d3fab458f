"""Orphans on their way to their new hosts: the limit of each, and the wait before an inexact copy is taken."""

from __future__ import annotations

from collections.abc import Callable

from elastic_dgc.membership.actions import Action, CancelTimer, Say, Send, SetTimer
from elastic_dgc.membership.control import AllowInexact, Hosted, Stuck
from elastic_dgc.membership.limits import Limits
from elastic_dgc.membership.records import Records
from elastic_dgc.membership.roster import Tier, View
from elastic_dgc.membership.settings import CoordinatorSettings

REHOST = "rehost"
EXACT = "exact"


class Rehosting:
    """Follows every virtual worker of the present view whose state its host has not got yet.

    Timers are named `rehost:<k>` and `exact:<k>`. The wait for an exact copy goes on through changes of view: a
    virtual worker waits once, however often its host changes.
    """

    def __init__(
        self, settings: CoordinatorSettings, limits: Limits, records: Records, emit: Callable[[Action], None]
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._records = records
        self._emit = emit
        self._moving: set[int] = set()
        self._stuck: set[int] = set()
        self._allowed: set[int] = set()

    @property
    def stuck(self) -> bool:
        """Whether an exact copy is being waited for."""
        return bool(self._stuck)

    def installed(self, view: View) -> None:
        for k in sorted((self._stuck | self._allowed) - view.sources.keys()):
            self._settled(k)
        self._moving = {k for k, places in view.sources.items() if places and places[0].tier is not Tier.INITIAL}
        for k in sorted(self._moving):
            self._emit(SetTimer(f"{REHOST}:{k}", self._limits.rehost_s))

    def interrupted(self) -> None:
        """A change of view begins: what is moving is looked at again when it ends."""
        for k in sorted(self._moving):
            self._emit(CancelTimer(f"{REHOST}:{k}"))
        self._moving.clear()

    def hosted(self, message: Hosted) -> None:
        """Its state is there: from now on exact copies of it are made where its host is."""
        k, tier = message.virtual_worker, Tier(message.tier)
        self._moving.discard(k)
        self._emit(CancelTimer(f"{REHOST}:{k}"))
        self._settled(k)
        self._records.settled(k)
        text = f"virtual worker {k} is at worker {message.uid}, tier {tier.value} ({tier.name.lower()})"
        text += f", {message.replayed} attempts replayed" if message.replayed else ""
        text += f", lost_mass at most {message.lost_mass:.3g}" if not tier.exact else ""
        text += f"; passed over: {', '.join(message.passed_over)}" if message.passed_over else ""
        self._emit(Say("info" if tier.exact and not message.passed_over else "warning", text))

    def no_exact_copy(self, message: Stuck, incarnation: int) -> None:
        """Its host asks what to do: wait for an exact copy first, unless that was done or the run is a fast one."""
        k = message.virtual_worker
        self._moving.discard(k)
        self._emit(CancelTimer(f"{REHOST}:{k}"))
        if not self._settings.exact or k in self._allowed:
            self._stuck.discard(k)
            self.allow(k, incarnation)
        elif k not in self._stuck:
            self._stuck.add(k)
            self._emit(SetTimer(f"{EXACT}:{k}", self._limits.exact_wait_s))
            self._emit(Say("warning", self._waiting(message)))

    def allow(self, virtual_worker: int, incarnation: int) -> None:
        """Tell the host in the present view to take the next best copy, and remember it for the next host."""
        view = self._records.view
        assert view is not None
        self._stuck.discard(virtual_worker)
        self._allowed.add(virtual_worker)
        self._moving.add(virtual_worker)
        self._emit(SetTimer(f"{REHOST}:{virtual_worker}", self._limits.rehost_s))
        host = view.workers[view.hosts[virtual_worker]].uid
        self._emit(Send(host, AllowInexact(incarnation, view.number, virtual_worker)))

    def waited(self, virtual_worker: int) -> bool:
        """The wait is over. Whether it was still waited for, an inexact copy being allowed now in any case."""
        waiting = virtual_worker in self._stuck
        self._stuck.discard(virtual_worker)
        self._allowed.add(virtual_worker)
        return waiting

    def _waiting(self, message: Stuck) -> str:
        k = message.virtual_worker
        home = self._records.home(k)
        where = f"the keeper of {home} would have one" if home is not None else "no node ever had one"
        then = "the run stops" if self._settings.strict else "an inexact one is taken"
        tried = "; ".join(message.tried) or "nothing there"
        return (
            f"virtual worker {k}: no exact copy of its state ({tried}); {where}: "
            f"waiting for {self._limits.exact_wait_s:g} s, then {then}"
        )

    def _settled(self, virtual_worker: int) -> None:
        if virtual_worker in self._stuck:
            self._emit(CancelTimer(f"{EXACT}:{virtual_worker}"))
        self._stuck.discard(virtual_worker)
        self._allowed.discard(virtual_worker)
