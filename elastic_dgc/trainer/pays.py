"""Whether compression pays on the link it runs on, said once, with both figures."""

from __future__ import annotations

import statistics

from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.routes import dense_exchange_s
from elastic_dgc.step.attempt import Outcome

STEPS = 10


class Pays:
    """Watches the first steps at the final density of a view. For one worker, which exchanges nothing, it is silent."""

    def __init__(self, members: Members, numel: int, final_density: float) -> None:
        self._members, self._numel, self._density = members, numel, final_density
        self._seconds: list[float] = []

    def add(self, outcome: Outcome) -> tuple[bool, str] | None:
        """After an attempt: (whether it pays, a line that says so) once enough was seen, else None."""
        link = self._members.link
        counts = outcome.committed and not outcome.plan.whole and outcome.plan.density == self._density
        if link is None or not counts or len(self._seconds) >= STEPS:
            return None
        self._seconds.append(outcome.seconds["compress"] + outcome.seconds["exchange"])
        if len(self._seconds) < STEPS:
            return None
        ours = statistics.median(self._seconds)
        dense = dense_exchange_s(self._members.places, link, self._members.virtual_workers, self._numel)
        route = self._members.route(outcome.plan.promised_bytes).value
        figures = (
            f"compression and exchange take {_shown(ours)} a step ({route}), an exchange of whole gradients would take "
            f"about {_shown(dense)} at {8e-6 * link.slowest.bytes_per_s:,.0f} Mbit/s between "
            f"{'nodes' if link.network else 'the workers of this machine'}"
        )
        if ours < dense:
            return True, f"compression pays here: {figures}"
        return False, f"compression does not pay here, going on as configured: {figures}"


def _shown(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
