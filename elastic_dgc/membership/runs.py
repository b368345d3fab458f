"""The directories of runs: `<name>/run-0001`, `run-0002` ... in the storage, one for each time a run began anew.

`run.json` is written once and holds what must not change, so that resuming with something else is refused in words;
`result.json` says how the run ended.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from elastic_dgc.errors import StorageError, UsageError
from elastic_dgc.membership.files import Files, damaged, encode, read_record

FORMAT = 1
RUN_FILE = "run.json"
RESULT_FILE = "result.json"
FINISHED = "finished"
EXTENDED = "extended"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIRECTORY = re.compile(r"run-(\d{4,})")
_TRIES = 100
_MEND = "restore it, or choose another --name"


class Status(str, Enum):
    """What the newest run of a name is."""

    NEW = "new"
    UNFINISHED = "unfinished"
    FINISHED = "finished"


@dataclass(frozen=True)
class RunDirectory:
    """The newest run of a name. Where there is none, `number` is 0, `status` NEW, and `files` not to be had.

    `identity` holds the fields that must not change, `settings` the whole configuration and `versions` those of the
    packages, all as JSON gave them back; `epochs` is what the run was last asked to reach.
    """

    root: Files
    name: str
    number: int = 0
    status: Status = Status.NEW
    identity: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def find(root: Files, name: str) -> RunDirectory:
        """The newest run of this name in the storage. Called by the driver.

        Raises `UsageError` on a name that is no plain file name, `StorageError` where records cannot be read.
        """
        _check_name(name)
        for number in reversed(_numbers(root, name)):
            path = f"{_place(name, number)}/{RUN_FILE}"
            record = read_record(root, path, _MEND)
            if record is None:
                continue  # whoever claimed it was ended before it wrote anything
            if isinstance(record.get("format"), int) and record["format"] > FORMAT:
                raise StorageError(
                    f"{root.url(path)} has format {record['format']}, this version reads {FORMAT}: update elastic-dgc"
                )
            try:
                result = read_result(root.child(_place(name, number))) or {}
                finished = result.get("state") == FINISHED
                return RunDirectory(
                    root=root,
                    name=name,
                    number=number,
                    status=Status.FINISHED if finished else Status.UNFINISHED,
                    identity=dict(record["identity"]),
                    epochs=int(result.get("epochs", record["epochs"])),
                    settings=dict(record["settings"]),
                    versions=dict(record["versions"]),
                )
            except (LookupError, TypeError, ValueError) as error:
                raise damaged(root, path, repr(error), _MEND) from error
        return RunDirectory(root, name)

    @staticmethod
    def create(
        root: Files,
        name: str,
        *,
        identity: Mapping[str, Any],
        epochs: int,
        settings: Mapping[str, Any],
        versions: Mapping[str, Any],
    ) -> RunDirectory:
        """Claim the next number of this name and write its `run.json`, once. Returns it, unfinished.

        All mappings must be JSON-able. Raises `UsageError` on a bad name, `StorageError` where it cannot be written.
        """
        number = RunDirectory.find(root, name).number
        record = {
            "format": FORMAT,
            "name": name,
            "identity": dict(identity),
            "epochs": epochs,
            "settings": dict(settings),
            "versions": dict(versions),
        }
        for _ in range(_TRIES):
            number += 1
            if root.create(f"{_place(name, number)}/{RUN_FILE}", encode({**record, "number": number})):
                return RunDirectory(root, name, number, Status.UNFINISHED, identity, epochs, settings, versions)
        raise StorageError(f"no run directory claimed in {root.url(name)}: others were faster {_TRIES} times")

    @property
    def place(self) -> str:
        """The run's directory, relative to the storage. Raises ValueError where there is no run."""
        if not self.number:
            raise ValueError(f"there is no run of the name '{self.name}' yet")
        return _place(self.name, self.number)

    @property
    def files(self) -> Files:
        """The storage of this run alone: views, heartbeat, checkpoints. Raises ValueError where there is no run."""
        return self.root.child(self.place)

    def extend(self, epochs: int) -> None:
        """Make a finished run unfinished again, with more epochs to reach, so that it goes on even if it is killed
        before the next checkpoint."""
        record_result(self.files, {"state": EXTENDED, "epochs": epochs})


class Start(str, Enum):
    """What the same command does."""

    NEW = "new"  # the first run of this name
    RESUME = "resume"  # go on from the newest checkpoint
    EXTEND = "extend"  # go on with a finished run to more epochs
    AFRESH = "afresh"  # a new run number: the last one is finished


def decide(
    status: Status,
    old_identity: Mapping[str, Any],
    new_identity: Mapping[str, Any],
    old_epochs: int,
    new_epochs: int,
) -> Start:
    """What to do with the newest run of the name asked for. Pure.

    Raises `UsageError` where the run there has another identity (every difference is listed), or where an unfinished
    run is asked for fewer epochs than it has.
    """
    if status is Status.NEW:
        return Start.NEW
    refuse_other(old_identity, new_identity)
    if status is Status.FINISHED:
        return Start.EXTEND if new_epochs > old_epochs else Start.AFRESH
    if new_epochs < old_epochs:
        raise UsageError(
            f"epochs: {old_epochs} there, {new_epochs} asked for: an unfinished run's can be raised, not lowered; "
            f"give --epochs {old_epochs}, or choose another --name"
        )
    return Start.RESUME


def refuse_other(old_identity: Mapping[str, Any], new_identity: Mapping[str, Any]) -> None:
    """Raises `UsageError`, every difference listed, where the two identities are not the same."""
    differences = mismatch(old_identity, new_identity)
    if differences:
        raise UsageError(
            f"this name has a run with other settings: {'; '.join(differences)}; "
            "choose another --name, or give the values that are there"
        )


def mismatch(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Every field in which two identities differ, in words and sorted by name; nested ones by dotted name.

    Values are compared as JSON gives them back: a tuple equals a list.
    """
    there, asked = _flat(json.loads(json.dumps(old))), _flat(json.loads(json.dumps(new)))
    return [
        f"{name}: {_show(there, name)} there, {_show(asked, name)} asked for"
        for name in sorted(there.keys() | asked.keys())
        if name not in there or name not in asked or there[name] != asked[name]
    ]


def record_result(files: Files, result: Mapping[str, Any]) -> None:
    """Write `result.json` in a run's own storage, replacing it. With "state": "finished" the run is finished;
    "epochs" is what it reached or is to reach. What is not finite becomes null: JSON has no word for it. Raises
    `StorageError`."""
    files.write(RESULT_FILE, encode(_finite(dict(result))))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_result(files: Files) -> dict[str, Any] | None:
    """What `record_result` wrote, None before it. Raises `StorageError` where it cannot be read."""
    return read_record(files, RESULT_FILE, "restore it, or delete it to go on with the run as unfinished")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"name '{name}': letters, digits, '.', '_' and '-' only, at most 100, beginning with a letter or a digit"
        )


def _place(name: str, number: int) -> str:
    return f"{name}/run-{number:04d}"


def _numbers(root: Files, name: str) -> list[int]:
    return sorted(int(match[1]) for match in map(_DIRECTORY.fullmatch, root.list(name)) if match)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            flat.update(_flat(item, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = item
    return flat


def _show(flat: Mapping[str, Any], name: str) -> str:
    return json.dumps(flat[name]) if name in flat else "not set"
