"""The package's one logger. Rank and virtual worker stand in the record; rank 0 sums up, everyone tells own faults."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

ROOT = "elastic_dgc"


class _Place(logging.LoggerAdapter):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        place = " ".join(f"{name} {value}" for name, value in (self.extra or {}).items() if value is not None)
        return (f"[{place}] {msg}" if place else msg), kwargs


def logger(*, worker: int | None = None, virtual_worker: int | None = None) -> logging.LoggerAdapter[Any]:
    """The package's logger, with the place it speaks from."""
    return _Place(logging.getLogger(ROOT), {"worker": worker, "virtual worker": virtual_worker})
