"""What everyone knows of every virtual worker without holding its state: where it has sent since the last checkpoint,
and how much residual it has at most. Both follow from rows and messages, so all workers have the same."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence

from elastic_dgc.compression.layout import Layout
from elastic_dgc.compression.message import Message
from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Payload
from elastic_dgc.keeping.sent import SentSince
from elastic_dgc.protocol.bundle import bundle, unbundle
from elastic_dgc.step.log import Entry
from elastic_dgc.step.mass import MassBound
from elastic_dgc.step.plan import plan
from elastic_dgc.step.row import Row
from elastic_dgc.step.settings import StepSettings
from elastic_dgc.step.sums import unpack_of

MEASURED_EVERY = 16  # attempts between two norms of the weights; between them the bound grows by what is applied


class Ledger:
    """`attempt`: the next entry it takes. `since`: from which tag on it knows all that was sent."""

    def __init__(self, settings: StepSettings, layout: Layout, attempt: int, known: bool) -> None:
        """`known`: nothing was accumulated or sent before `attempt`, as at the start of a run; else the bounds are
        infinite until votes bring norms."""
        self._settings, self._layout = settings, layout
        self.attempt = self.since = attempt
        start = [0.0 if known else math.inf] * settings.virtual_workers
        self.mass = MassBound(settings, layout.numel, start, start)
        self.sent = [SentSince(layout.numel) for _ in start]
        self._weights = math.inf  # bound of their norm

    def decided(
        self,
        entry: Entry,
        applied: int,
        committed: bool,
        weights_norm: float | None,
        messages: Sequence[Message] | None = None,
    ) -> None:
        """An attempt was decided. `applied`: commits before it. `weights_norm`: of the trained weights before it, None
        where it was not measured (`wants_norm`). `messages`: the entry's, where they are decoded already."""
        planned = plan(self._settings, self._layout, applied)
        self._weights = weights_norm if weights_norm is not None else self._weights
        self.mass.decided([Row.unpack(row) for row in entry.rows], planned, committed, self._weights)
        self.attempt = entry.attempt + 1
        if not committed:
            return
        self._weights += self._settings.lr(applied) * sum(self.mass.v)
        if messages is None and entry.messages is not None:
            messages = [unpack_of(self._layout, k, one) for k, one in enumerate(entry.messages)]
        for k, one in enumerate(self.sent):
            if messages is None:
                one.add_all()
            else:
                one.add(messages[k].positions)

    def wants_norm(self) -> bool:
        """Whether the norm of the weights is to be measured for the coming attempt."""
        return bool(self._settings.local_decay) and (
            self.attempt % MEASURED_EVERY == 0 or not math.isfinite(self._weights)
        )

    def saved(self, decided: int) -> None:
        """All owned state at `decided` is in a durable checkpoint."""
        self.since = decided
        for one in self.sent:
            one.clear()

    def pack(self) -> bytes:
        """For a newcomer."""
        fields = {
            "attempt": self.attempt, "since": self.since, "weights": _finite(self._weights),
            "u": [_finite(one) for one in self.mass.u], "v": [_finite(one) for one in self.mass.v],
        }  # fmt: skip
        return bundle([json.dumps(fields).encode(), *(zlib.compress(one.pack(), 1) for one in self.sent)])

    @staticmethod
    def unpack(settings: StepSettings, layout: Layout, data: Payload) -> Ledger:
        """The inverse. Raises `MessageError` on anything that `pack` did not make."""
        first, *bitmaps = unbundle(data)
        try:
            fields = json.loads(first)
            found = Ledger(settings, layout, fields["attempt"], known=True)
            found.since, found._weights = fields["since"], _infinite(fields["weights"])
            bounds = [[_infinite(one) for one in fields[name]] for name in ("u", "v")]
            found.mass = MassBound(settings, layout.numel, *bounds)
            found.sent = [SentSince.unpack(zlib.decompress(one)) for one in bitmaps]
        except (LookupError, TypeError, ValueError, zlib.error) as error:
            raise MessageError(f"a ledger of {len(data)} bytes is damaged: {error!r}") from error
        if len(found.sent) != settings.virtual_workers or any(one.numel != layout.numel for one in found.sent):
            raise MessageError(f"a ledger of {len(found.sent)} virtual workers does not fit this run")
        return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity


def _infinite(value: float | None) -> float:
    return math.inf if value is None else value
