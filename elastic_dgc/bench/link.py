"""The network between the workers, as our transport measured it when the group began: what its routes are chosen by."""

from __future__ import annotations

from typing import Any

from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.routes import Speed


def as_json(members: Members) -> dict[str, Any]:
    """By 'between nodes' and 'within a node', as far as there are workers that way: `mbit_s` from one worker to the
    next while all send, and the `round_trip_ms` of a small frame, of the slowest pair; and `gloo_gain`, how much faster
    gloo moved whole gradients than our frames (0: not tried). Empty for one worker."""
    link = members.link
    if link is None:
        return {}
    speeds = {"between nodes": link.network, "within a node": link.local}
    found: dict[str, Any] = {name: _speed(speed) for name, speed in speeds.items() if speed is not None}
    return {**found, "gloo_gain": round(link.collectives_gain, 2)}


def _speed(speed: Speed) -> dict[str, float]:
    return {"mbit_s": round(8e-6 * speed.bytes_per_s, 1), "round_trip_ms": round(2000 * speed.latency_s, 3)}


def text(measured: dict[str, Any]) -> str:
    """The link in words."""
    parts = [
        f"{speed['mbit_s']:g} Mbit/s, round trip {speed['round_trip_ms']:g} ms {name}"
        for name, speed in measured.items()
        if isinstance(speed, dict)
    ]
    return "; ".join(parts) or "one worker, no link"
