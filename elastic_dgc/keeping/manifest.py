"""What a checkpoint consists of. A checkpoint exists from the moment its manifest does."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_dgc.errors import DamagedCheckpoint, StorageError
from elastic_dgc.keeping.canonical import canonical_json

FORMAT = 1
FILE = "manifest.json"
ROOT = "checkpoints"

_DIRECTORY = re.compile(r"v(\d{6,})-s(\d{9,})")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def directory(view: int, attempt: int) -> str:
    """Where the checkpoint of (view, attempt) lies, relative to the run's storage."""
    if view < 0 or attempt < 0:
        raise ValueError(f"checkpoint of view {view}, attempt {attempt}: neither can be negative")
    return f"{ROOT}/v{view:06d}-s{attempt:09d}"


def parse_directory(name: str) -> tuple[int, int] | None:
    """(view, attempt) of the name of a checkpoint's directory, None for other names."""
    match = _DIRECTORY.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True)
class Part:
    """One file of a checkpoint: its name in the directory, its size and the SHA-256 of its content in hex."""

    name: str
    size_bytes: int
    sha256: str

    @staticmethod
    def of(name: str, data: bytes) -> Part:
        return Part(name, len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Manifest:
    """A complete checkpoint: of which run, view and attempt, its files, and whatever the trainer adds in `meta`
    (JSON-able). Raises ValueError on part names that are not plain, or that stand there twice."""

    run: str
    view: int
    attempt: int
    parts: tuple[Part, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        for name in names:
            if not _NAME.fullmatch(name) or name == FILE:
                raise ValueError(f"part name {name!r}: letters, digits, '.', '_' and '-', and not {FILE!r}")
        if len(set(names)) != len(names):
            raise ValueError(f"parts {', '.join(names)}: a name stands there twice")

    @property
    def directory(self) -> str:
        return directory(self.view, self.attempt)

    def part(self, name: str) -> Part:
        """The part of this name. Raises `DamagedCheckpoint` where there is none."""
        for part in self.parts:
            if part.name == name:
                return part
        known = ", ".join(one.name for one in self.parts)
        raise DamagedCheckpoint(f"checkpoint {self.directory} has no part '{name}', only {known or 'none'}")

    def encode(self) -> bytes:
        """The content of the manifest file: JSON that carries the SHA-256 of its own canonical form."""
        return _encode(
            {
                "format": FORMAT,
                "run": self.run,
                "view": self.view,
                "attempt": self.attempt,
                "parts": [vars(part) for part in self.parts],
                "meta": dict(self.meta),
            }
        )

    @staticmethod
    def decode(data: bytes, where: str) -> Manifest:
        """The manifest in these bytes; `where` names the file in errors.

        Raises `DamagedCheckpoint` where a byte is not as it was written, `StorageError` where the file is whole but
        of a newer format. The rule of the checksum holds for all formats, so that the two can be told apart.
        """
        try:
            content = json.loads(data)
            expected = content.pop("sha256")
            if _encode(content) != data:
                raise ValueError(f"expected checksum {expected}, found {_checksum(content)}")
            if content["format"] > FORMAT:
                raise StorageError(
                    f"{where} has format {content['format']}, this version reads up to {FORMAT}: update elastic-dgc"
                )
            parts = tuple(Part(**part) for part in content["parts"])
            return Manifest(content["run"], content["view"], content["attempt"], parts, content["meta"])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise DamagedCheckpoint(f"{where} is damaged: {' '.join(str(error).split())[:200]}") from error


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _encode(content: Mapping[str, Any]) -> bytes:
    return (canonical_json({**content, "sha256": _checksum(content)}, indent=1) + "\n").encode()
