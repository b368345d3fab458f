"""A save that fails at any point leaves the checkpoint before it in place, and no damage goes unseen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from elastic_dgc.errors import DamagedCheckpoint, StorageError
from elastic_dgc.keeping.checkpoint import Manifest, commit, manifests, read_part, rotate, write_part
from elastic_dgc.keeping.manifest import _encode
from elastic_dgc.keeping.storage import ArrowStorage, LocalStorage, Storage

NAMES = ("shared.safetensors", "owned-0.safetensors", "owned-1.safetensors")


class FaultyStorage(Storage):
    """A storage whose n-th operation, counted from 0, goes wrong: before it, after it, or by losing half the data."""

    is_local = False

    def __init__(self, inner: Storage, at: int | None = None, how: str = "before") -> None:
        self.inner, self.at, self.how, self.count = inner, at, how, 0

    def _do(self, work: Callable[..., Any], path: str, *data: bytes) -> Any:
        hit, self.count = self.count == self.at, self.count + 1
        if hit and self.how == "before":
            raise StorageError("injected")
        if hit and self.how == "truncate":
            data = tuple(one[: len(one) // 2] for one in data)
        result = work(path, *data)
        if hit and self.how == "after":
            raise StorageError("injected")
        return result

    def write(self, path: str, data: bytes) -> None:
        self._do(self.inner.write, path, data)

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._do(self.inner.create, path, data))

    def read(self, path: str) -> bytes:
        return bytes(self._do(self.inner.read, path))

    def size(self, path: str) -> int | None:
        return self._do(self.inner.size, path)

    def exists(self, path: str) -> bool:
        return bool(self._do(self.inner.exists, path))

    def list(self, path: str = "") -> Any:
        return self._do(self.inner.list, path)

    def delete(self, path: str) -> None:
        self._do(self.inner.delete, path)

    def child(self, path: str) -> Storage:
        return self.inner.child(path)

    def url(self, path: str = "") -> str:
        return self.inner.url(path)

    def local_path(self, path: str = "") -> Path:
        return self.inner.local_path(path)


def content(view: int, attempt: int, name: str) -> bytes:
    return f"{name} of {view} at {attempt}, ".encode() * 20


def save(storage: Storage, view: int, attempt: int) -> Manifest:
    parts = [write_part(storage, view, attempt, name, content(view, attempt, name)) for name in NAMES]
    return commit(storage, view, attempt, parts, {"digest": "ab", "shape": (2, 3)}, run="digits/run-0001")


def loads(storage: Storage, manifest: Manifest) -> bool:
    key = (manifest.view, manifest.attempt)
    return all(read_part(storage, manifest, name) == content(*key, name) for name in NAMES)


@pytest.fixture(params=["local", "arrow"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path)
    return ArrowStorage(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "", "tree://")


def test_the_newest_is_the_highest_view_and_attempt(storage: Storage) -> None:
    for key in [(1, 5), (2, 3), (1, 9), (10, 0), (2, 20)]:
        assert save(storage, *key).attempt == key[1]
    found, problems = manifests(storage)
    assert [(one.view, one.attempt) for one in found] == [(10, 0), (2, 20), (2, 3), (1, 9), (1, 5)]
    assert (found[0].run, found[0].meta, problems) == ("digits/run-0001", {"digest": "ab", "shape": [2, 3]}, [])
    assert all(loads(storage, one) for one in found)
    assert found[0] == commit_twice_refused(storage, 10, 0, found[0])


def commit_twice_refused(storage: Storage, view: int, attempt: int, manifest: Manifest) -> Manifest:
    with pytest.raises(StorageError, match="complete checkpoint"):
        commit(storage, view, attempt, manifest.parts, {"other": 1})
    with pytest.raises(StorageError, match="complete checkpoint"):
        write_part(storage, view, attempt, NAMES[0], b"other")
    return manifests(storage)[0][0]


def operations_of_a_save(tmp_path: Path) -> int:
    counting = FaultyStorage(LocalStorage(tmp_path / "count"))
    save(counting, 1, 1)
    return counting.count


@pytest.mark.parametrize("how", ["before", "after", "truncate"])
def test_a_fault_at_any_operation_of_a_save_leaves_the_last_checkpoint_first(tmp_path: Path, how: str) -> None:
    total = operations_of_a_save(tmp_path)
    assert total > 2 * len(NAMES)
    for at in range(total):
        inner = LocalStorage(tmp_path / f"{how}-{at}")
        before = save(inner, 1, 100)
        faulty = FaultyStorage(inner, at, how)
        try:
            save(faulty, 2, 200)
            failed = False
        except StorageError:
            failed = True
        first = manifests(inner)[0][0]
        if (first.view, first.attempt) == (2, 200):
            # Only what was wholly written may count; a failure after the commit point is one of those.
            assert not failed or (how, at) == ("after", total - 1)
        else:
            assert first == before
        assert loads(inner, first), (how, at)
        again = save(inner, 3, 200)  # and the run can go on
        assert manifests(inner)[0][0] == again
        rotate(inner, 1, again, 3)
        assert loads(inner, again)
        kept = [one for one in inner.list("checkpoints") if one != "v000003-s000000200"]
        # A truncated manifest is a damaged one, which stays for a human to see.
        assert kept == (["v000002-s000000200"] if (how, at) == ("truncate", total - 1) else [])


def test_a_part_that_is_absent_or_short_cannot_be_committed(storage: Storage) -> None:
    parts = [write_part(storage, 1, 1, name, b"12345") for name in NAMES]
    storage.write(f"checkpoints/v000001-s000000001/{NAMES[1]}", b"1234")
    with pytest.raises(StorageError, match=r"owned-0.* should have 5 bytes, found 4 bytes"):
        commit(storage, 1, 1, parts, {})
    storage.delete(f"checkpoints/v000001-s000000001/{NAMES[1]}")
    with pytest.raises(StorageError, match=r"owned-0.* found no such file"):
        commit(storage, 1, 1, parts, {})
    found, problems = manifests(storage)
    assert found == []
    assert "half written" in problems[0]


def flipped(good: bytes, place: int) -> bytes:
    return good[:place] + bytes([good[place] ^ (1 << place % 8)]) + good[place + 1 :]


def test_a_flipped_byte_in_any_place_of_a_manifest_is_found(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    save(storage, 1, 1)
    whole = save(storage, 1, 2)
    good = whole.encode()
    assert Manifest.decode(good, "here") == whole
    for place in range(len(good)):
        with pytest.raises(DamagedCheckpoint, match="here is damaged"):
            Manifest.decode(flipped(good, place), "here")
    storage.write(f"{whole.directory}/manifest.json", flipped(good, 40))
    found, problems = manifests(storage)
    assert [one.attempt for one in found] == [1]
    assert [f"{tmp_path / whole.directory}/manifest.json is damaged" in one for one in problems] == [True]


def test_a_flipped_byte_in_any_part_is_found(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    whole = save(storage, 1, 2)
    for name in NAMES:
        file = tmp_path / whole.directory / name
        good = file.read_bytes()
        for place in [*range(0, len(good), 37), len(good) - 1]:
            file.write_bytes(flipped(good, place))
            with pytest.raises(DamagedCheckpoint, match=r"expected SHA-256 \w+, found \w+; restore") as caught:
                read_part(storage, whole, name)
            assert str(file) in str(caught.value)
        file.write_bytes(good)
    assert loads(storage, whole)


def test_a_part_that_vanished_or_was_cut_is_named(storage: Storage) -> None:
    save(storage, 1, 1)
    manifest = save(storage, 1, 2)
    path = f"{manifest.directory}/{NAMES[2]}"
    storage.write(path, b"short")
    with pytest.raises(DamagedCheckpoint, match=r"owned-1.*expected \d+ bytes, found 5; restore"):
        read_part(storage, manifest, NAMES[2])
    storage.delete(path)
    with pytest.raises(DamagedCheckpoint, match=r"owned-1.*missing"):
        read_part(storage, manifest, NAMES[2])
    with pytest.raises(DamagedCheckpoint, match="no part 'owned-7', only shared"):
        read_part(storage, manifest, "owned-7")
    found, problems = manifests(storage)
    assert [one.attempt for one in found] == [1]
    assert "owned-1.safetensors missing" in problems[0]


def test_a_newer_format_stops_instead_of_being_skipped(storage: Storage) -> None:
    save(storage, 1, 1)
    storage.write("checkpoints/v000002-s000000001/manifest.json", _encode({"format": 2, "novel": True}))
    with pytest.raises(StorageError, match="format 2, this version reads up to 1: update"):
        manifests(storage)


def test_a_manifest_in_a_foreign_directory_does_not_count(storage: Storage) -> None:
    manifest = save(storage, 1, 1)
    for name in NAMES:
        storage.write(f"checkpoints/v000009-s000000001/{name}", b"")
    storage.write("checkpoints/v000009-s000000001/manifest.json", manifest.encode())
    found, problems = manifests(storage)
    assert found == [manifest]
    assert "it is of view 1" in problems[0]


def test_rotation_keeps_what_it_must_and_deletes_the_rest(storage: Storage) -> None:
    saved = [save(storage, view, attempt) for view, attempt in [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]]
    write_part(storage, 1, 3, NAMES[0], b"half of an older view")
    write_part(storage, 2, 6, NAMES[0], b"being written")
    storage.write("checkpoints/notes.txt", b"not ours")
    # Even where the one just verified is the oldest, it stays, and so does the newest.
    deleted = rotate(storage, 1, saved[0], current_view=2)
    left = storage.list("checkpoints")
    assert left == ["notes.txt", "v000001-s000000001", "v000002-s000000005", "v000002-s000000006"]
    assert len(deleted) == 4
    assert [loads(storage, one) for one in manifests(storage)[0]] == [True, True]
    with pytest.raises(ValueError, match="at least 1"):
        rotate(storage, 0, saved[0], 2)


def test_a_failure_while_rotating_is_a_warning_and_costs_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at, done = 0, False
    while not done:
        inner = LocalStorage(tmp_path / str(at))
        for attempt in (1, 2, 3):
            last = save(inner, 1, attempt)
        write_part(inner, 0, 9, NAMES[0], b"half")
        faulty = FaultyStorage(inner, at)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "elastic_dgc"):
            rotate(faulty, 1, last, 1)
        done = faulty.count <= at
        assert len(caplog.records) == (0 if done else 1)
        found, problems = manifests(inner)
        assert found[0] == last
        assert loads(inner, last)
        assert all("half written" in problem for problem in problems)
        at += 1
    assert at > 10


def test_names_that_cannot_be_parts_are_refused(storage: Storage) -> None:
    for name in ("", "manifest.json", "../x", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="part name"):
            write_part(storage, 1, 1, name, b"")
    part = write_part(storage, 1, 1, "x", b"")
    with pytest.raises(ValueError, match="twice"):
        commit(storage, 1, 1, [part, part], {})
