"""Whether a run is being trained right now, seen from outside.

Clocks of two machines are never compared: a run is live if a beat of it advances while somebody watches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic_dgc.errors import FileMissing
from elastic_dgc.log import logger
from elastic_dgc.membership.files import Files, decode

FILE = "heartbeat.json"  # of the group that trains
DRIVER_FILE = "driver.json"
PERIOD_S = 2.0

RUNNING = "running"
FINISHED = "finished"
STOPPED = "stopped"
LEFT = "left"  # the group made room for one of another size

_WATCH_PERIODS = 3
_MAX_WATCH_S = 60.0
_POLLS = 12


@dataclass(frozen=True)
class Alive:
    """The last beat of a run: who trains it and how far it is. `unix_s` is that machine's clock, for display only."""

    state: str
    view: int
    beat: int
    attempt: int
    host: str
    pid: int
    period_s: float
    unix_s: float


def watch_alive(
    files: Files,
    watch_s: float | None = None,
    *,
    names: Sequence[str] = (DRIVER_FILE, FILE),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Alive | None:
    """The newest beat in one of these files that advances while being watched, None if the run is not live.

    Returns at once where there are no beats or where they say that the run ended, otherwise at the first advance or
    after `watch_s` seconds, by default three of the beats' own periods and at most a minute. A damaged beat is
    logged and watched like others. Raises `StorageError` where the storage cannot be read.
    """
    watched: dict[str, bytes] = {}
    periods_s = []
    for name in names:
        data = _raw(files, name)
        beat = _parse(data)
        if data is None or (beat is not None and beat.state != RUNNING):
            continue
        if beat is None:
            logger().warning("%s is damaged: watching whether somebody rewrites it", files.url(name))
        watched[name] = data
        periods_s.append(beat.period_s if beat is not None else PERIOD_S)
    if not watched:
        return None
    if watch_s is None:
        watch_s = min(_WATCH_PERIODS * max(periods_s), _MAX_WATCH_S)
    end_s = clock() + watch_s
    while watched and (left_s := end_s - clock()) > 0:
        sleep(min(watch_s / _POLLS, left_s))
        for name in list(watched):
            data = _raw(files, name)
            now = _parse(data)
            if data is None or (now is not None and now.state != RUNNING):
                del watched[name]
            elif now is not None and data != watched[name]:
                return now
    return None


def last_beat(files: Files, name: str = FILE) -> Alive | None:
    """The last beat there is, of a run that is live or not; None where there is none that makes sense."""
    return _parse(_raw(files, name))


def _raw(files: Files, name: str) -> bytes | None:
    try:
        return files.read(name)
    except FileMissing:
        return None


def _parse(data: bytes | None) -> Alive | None:
    """The beat in these bytes, None where they make no sense."""
    if data is None:
        return None
    try:
        alive = Alive(**decode(data))
    except (ValueError, TypeError):
        return None
    return alive if isinstance(alive.period_s, (int, float)) and alive.period_s > 0 else None
