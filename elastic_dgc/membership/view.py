"""Views: the numbered sets of workers that trained a run, claimed one after the other in write-once files.

Whoever claims the next number owns the run from then on; whoever finds a number above its own is the past and stops.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from elastic_dgc.errors import StorageError
from elastic_dgc.membership.files import Files, damaged, encode, read_record

ROOT = "views"
_FILE = re.compile(r"(\d{6,})\.json")
_TRIES = 100
_MEND = "restore it, or start the run under another name"


@dataclass(frozen=True)
class ViewRecord:
    """A view as it was claimed. `number` counts from 1 in a run; `workers` is N; `hosts` are the nodes by rank;
    `resumed_from` is the attempt of the checkpoint it started from, None for a fresh start. `after_failure`: the same
    command started it, because the group before it failed."""

    number: int
    run: str
    workers: int
    started_unix_s: float
    resumed_from: int | None
    hosts: tuple[str, ...]
    after_failure: bool = False


def claim_view(
    files: Files,
    *,
    run: str,
    workers: int,
    started_unix_s: float,
    resumed_from: int | None,
    hosts: Sequence[str],
    after_failure: bool = False,
) -> ViewRecord:
    """Claim the number above the highest there is, in the run's storage. Called once for each start of a group.

    Two who claim at once get different numbers (on object stores as far as `Storage.create` can promise it). Raises
    `StorageError`, also when others were faster a hundred times.
    """
    number = latest_number(files)
    for _ in range(_TRIES):
        number = max(number, latest_number(files)) + 1  # never the same twice, even where a listing lags behind
        record = ViewRecord(number, run, workers, started_unix_s, resumed_from, tuple(hosts), after_failure)
        if files.create(_path(number), encode(asdict(record))):
            return record
    raise StorageError(
        f"no view claimed in {files.url(ROOT)}: others were faster {_TRIES} times; is this run started in many places?"
    )


def latest_number(files: Files) -> int:
    """The highest number claimed, 0 where there is none. Reads names only: cheap enough for every heartbeat."""
    return max(_numbers(files), default=0)


def latest_view(files: Files) -> ViewRecord | None:
    """The view with the highest number, None before the first. Raises `StorageError` where it cannot be read."""
    number = latest_number(files)
    return _read(files, number) if number else None


def history(files: Files) -> list[ViewRecord]:
    """All views of the run, oldest first. Raises `StorageError` where one cannot be read."""
    return [_read(files, number) for number in sorted(_numbers(files))]


def _path(number: int) -> str:
    return f"{ROOT}/{number:06d}.json"


def _numbers(files: Files) -> list[int]:
    return [int(match[1]) for match in map(_FILE.fullmatch, files.list(ROOT)) if match]


def _read(files: Files, number: int) -> ViewRecord:
    path = _path(number)
    record = read_record(files, path, _MEND)
    if record is None:
        raise StorageError(f"{files.url(path)} vanished while it was read: {_MEND}")
    try:
        view = ViewRecord(**{**record, "hosts": tuple(record["hosts"])})
        if view.number != number:
            raise ValueError(f"it is of view {view.number}")
        return view
    except (TypeError, LookupError, ValueError) as error:
        raise damaged(files, path, error, _MEND) from error
