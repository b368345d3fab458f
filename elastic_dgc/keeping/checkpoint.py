"""Durable checkpoints: parts first, the manifest last, so that one that was interrupted was never there.

Who calls what: every worker writes its parts, then one of them commits, then rotates. A reader takes the first of
`manifests`, the highest (view, attempt), and reads parts through it. `storage` is the run's own directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from elastic_dgc.errors import DamagedCheckpoint, FileMissing, StorageError
from elastic_dgc.keeping.manifest import FILE, ROOT, Manifest, Part, directory, parse_directory
from elastic_dgc.keeping.storage_base import Storage
from elastic_dgc.log import logger

__all__ = ["Manifest", "Part", "commit", "manifests", "read_part", "rotate", "write_part"]


def write_part(storage: Storage, view: int, attempt: int, name: str, data: bytes) -> Part:
    """Write one file of a checkpoint that is not committed yet; the same name again replaces it.

    Returns what `commit` needs to know of it. Raises `StorageError`, also where that checkpoint is complete already.
    """
    part = Manifest("", view, attempt, (Part.of(name, data),)).parts[0]  # the manifest's checks, before writing
    if storage.exists(f"{directory(view, attempt)}/{FILE}"):
        raise _complete(storage, view, attempt)
    storage.write(f"{directory(view, attempt)}/{name}", data)
    return part


def commit(
    storage: Storage, view: int, attempt: int, parts: Sequence[Part], meta: Mapping[str, Any], *, run: str = ""
) -> Manifest:
    """Make the checkpoint exist, by its manifest. Before this returns or raises, it is there whole or not at all.

    `run` names the run for human readers. Raises `StorageError` where a part is absent or has another size than it
    was written with, and where this checkpoint is complete already: nothing is ever replaced.
    """
    data = Manifest(run, view, attempt, tuple(parts), dict(meta)).encode()
    manifest = Manifest.decode(data, FILE)  # as every reader will see it, tuples in `meta` as lists
    for part in manifest.parts:
        path = f"{manifest.directory}/{part.name}"
        size_bytes = storage.size(path)
        if size_bytes != part.size_bytes:
            found = "no such file" if size_bytes is None else f"{size_bytes} bytes"
            raise StorageError(
                f"checkpoint not committed: {storage.url(path)} should have {part.size_bytes} bytes, found {found}; "
                "is the storage shared by all nodes?"
            )
    if not storage.create(f"{manifest.directory}/{FILE}", data):
        raise _complete(storage, view, attempt)
    return manifest


def manifests(storage: Storage) -> tuple[list[Manifest], list[str]]:
    """The complete checkpoints, newest (highest view, then attempt) first, and in words what else is there.

    Half-written directories, damaged manifests and manifests whose parts are gone are such problems, never entries.
    The parts' content is not read. Raises `StorageError` where the storage cannot be read or a manifest is of a
    newer format: resuming from an older checkpoint instead would lose work unseen.
    """
    found: list[Manifest] = []
    problems: list[str] = []
    for place, (view, attempt) in _directories(storage):
        names = storage.list(place)
        path = f"{place}/{FILE}"
        try:
            if FILE not in names:
                raise FileMissing(f"{storage.url(place)} is half written (no {FILE})")
            manifest = Manifest.decode(storage.read(path), storage.url(path))
            if (manifest.view, manifest.attempt) != (view, attempt):
                raise DamagedCheckpoint(
                    f"{storage.url(path)} is damaged: it is of view {manifest.view}, attempt {manifest.attempt}"
                )
            gone = [part.name for part in manifest.parts if part.name not in names]
            if gone:
                raise DamagedCheckpoint(f"{storage.url(place)} is damaged: {', '.join(gone)} missing")
            found.append(manifest)
        except (FileMissing, DamagedCheckpoint) as error:
            problems.append(f"{error}: ignored")
    return found, problems


def read_part(storage: Storage, manifest: Manifest, name: str) -> bytes:
    """The content of a part, verified. Raises `DamagedCheckpoint` with the file, what was expected and what found."""
    part = manifest.part(name)
    path = f"{manifest.directory}/{name}"
    try:
        data = storage.read(path)
    except FileMissing as error:
        raise DamagedCheckpoint(
            f"{storage.url(path)} is missing: expected {part.size_bytes} bytes; {_mend(storage, manifest)}"
        ) from error
    if len(data) != part.size_bytes:
        difference = f"expected {part.size_bytes} bytes, found {len(data)}"
    else:
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 == part.sha256:
            return data
        difference = f"expected SHA-256 {part.sha256}, found {sha256}"
    raise DamagedCheckpoint(f"{storage.url(path)} is damaged: {difference}; {_mend(storage, manifest)}")


def rotate(storage: Storage, keep: int, verified: Manifest, current_view: int) -> list[str]:
    """Delete complete checkpoints beyond the newest `keep`, and what views before `current_view` left half written.

    Never deletes `verified` (the one just committed), nor the newest complete one, nor a damaged one, which a human
    may want. Returns the directories deleted. What fails is a warning in the log: a checkpoint too many harms nobody.
    """
    if keep < 1:
        raise ValueError(f"keep = {keep}: at least 1 checkpoint must be kept")
    deleted: list[str] = []
    try:
        found, _ = manifests(storage)
        kept = {manifest.directory for manifest in found[:keep]} | {verified.directory}
        old = [manifest.directory for manifest in found if manifest.directory not in kept]
        half = [
            place
            for place, (view, _) in _directories(storage)
            if view < current_view and place not in kept and FILE not in storage.list(place)
        ]
    except StorageError as error:
        logger().warning("old checkpoints not rotated: %s", error)
        return deleted
    for place in old + half:
        try:
            # Without its manifest it is no checkpoint any more: an interrupted deletion leaves no damaged one.
            storage.delete(f"{place}/{FILE}")
            storage.delete(place)
            deleted.append(place)
        except StorageError as error:
            logger().warning("old checkpoint not deleted: %s", error)
    return deleted


def _directories(storage: Storage) -> list[tuple[str, tuple[int, int]]]:
    """Every checkpoint's directory, complete or not, with its (view, attempt), newest first."""
    named = [(f"{ROOT}/{name}", parse_directory(name)) for name in storage.list(ROOT)]
    return sorted(((place, key) for place, key in named if key is not None), key=lambda one: one[1], reverse=True)


def _complete(storage: Storage, view: int, attempt: int) -> StorageError:
    where = storage.url(directory(view, attempt))
    return StorageError(f"{where} is a complete checkpoint: none is ever replaced; claim a new view to write it again")


def _mend(storage: Storage, manifest: Manifest) -> str:
    return f"restore the file, or delete {storage.url(manifest.directory)} to resume from the checkpoint before it"
