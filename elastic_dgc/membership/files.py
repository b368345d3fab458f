"""What membership needs of a storage, and the small JSON records it keeps there.

A protocol and not an import: membership and keeping are neighbours, and any `keeping.storage.Storage` fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from elastic_dgc.errors import FileMissing, StorageError

Names = list[str]  # inside a class with a method `list` the builtin cannot be named


class Files(Protocol):
    """The methods of a storage that are used here; all raise `StorageError`, `read` also `FileMissing`."""

    def write(self, path: str, data: bytes) -> None:
        """Replace a file, whole or not at all."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a file that is not there yet; False where it is."""

    def read(self, path: str) -> bytes:
        """The whole content."""

    def list(self, path: str = "") -> Names:
        """The names in a directory, none where there is no directory."""

    def child(self, path: str) -> Files:
        """The storage whose root is this directory."""

    def url(self, path: str = "") -> str:
        """The full name for messages."""


def encode(record: Mapping[str, Any]) -> bytes:
    """A record as readable JSON bytes. Raises TypeError on values that JSON does not know."""
    return (json.dumps(record, sort_keys=True, indent=1) + "\n").encode()


def decode(data: bytes) -> dict[str, Any]:
    """The record in these bytes. Raises ValueError where they are not a JSON object."""
    try:
        record = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__} where a JSON object should be")
    return record


def damaged(files: Files, path: str, reason: object, mend: str) -> StorageError:
    """The error for a record that is there and makes no sense."""
    return StorageError(f"{files.url(path)} is damaged ({' '.join(str(reason).split())[:200]}): {mend}")


def read_record(files: Files, path: str, mend: str) -> dict[str, Any] | None:
    """The record in a file, None where there is no such file. `mend` ends the error of a damaged one."""
    try:
        return decode(files.read(path))
    except FileMissing:
        return None
    except ValueError as error:
        raise damaged(files, path, error, mend) from error
