"""Both storages keep one contract; the local one also survives a failure of any of its system calls."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from pyarrow import fs

from elastic_dgc.errors import FileMissing, StorageError, UsageError
from elastic_dgc.keeping.storage import ArrowStorage, LocalStorage, Storage, open_storage


@pytest.fixture(params=["local", "arrow", "mock"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path / "root")
    if request.param == "arrow":
        tree = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        return ArrowStorage(tree, "root", "tree://root")
    return open_storage("mock:///root")


def test_what_is_written_is_read_listed_replaced_and_deleted(storage: Storage) -> None:
    assert (storage.list("a"), storage.exists("a/x"), storage.size("a/x")) == ([], False, None)
    storage.write("a/x", b"one")
    storage.write("a/x", b"two!")
    storage.write("a/b/y", b"")
    assert (storage.read("a/x"), storage.read("a/b/y")) == (b"two!", b"")
    assert (storage.list("a"), storage.list()) == (["b", "x"], ["a"])
    assert (storage.size("a/x"), storage.size("a/b/y"), storage.size("a")) == (4, 0, None)
    assert storage.exists("a/b")
    assert storage.child("a").child("b").read("y") == b""
    assert storage.child("a").url("x") == storage.url("a/x")
    storage.delete("a/x")
    storage.delete("a")
    storage.delete("a")
    assert storage.list() == []


def test_create_never_replaces(storage: Storage) -> None:
    assert storage.create("views/1", b"first")
    assert not storage.create("views/1", b"second")
    assert storage.read("views/1") == b"first"
    assert storage.list("views") == ["1"]


def test_a_missing_file_is_told_apart_and_named(storage: Storage) -> None:
    with pytest.raises(FileMissing, match="no such file") as caught:
        storage.read("a/none")
    assert storage.url("a/none") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a/../../b", "a//b", "./a"])
def test_a_path_cannot_leave_the_root(storage: Storage, path: str) -> None:
    for use in (storage.read, storage.delete, lambda one: storage.write(one, b"")):
        with pytest.raises(ValueError, match="must be relative"):
            use(path)


def test_one_of_many_wins_a_creation(tmp_path: Path) -> None:
    storage, wins, together = LocalStorage(tmp_path), [], threading.Barrier(8)

    def claim(who: int) -> None:
        together.wait(10)
        if storage.create("claim", b"%d" % who):
            wins.append(b"%d" % who)

    threads = [threading.Thread(target=claim, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert wins == [storage.read("claim")]


@pytest.mark.parametrize("call", ["open", "fsync", "replace", "link"])
def test_a_full_disk_leaves_the_old_content_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("d/x", b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if call == "open":
            patch.setattr("builtins.open", full)
        else:
            patch.setattr(os, call, full)
        work = (lambda: storage.create("d/y", b"new")) if call == "link" else (lambda: storage.write("d/x", b"new"))
        with pytest.raises(StorageError, match=r"cannot \w+ .*/d/[xy]: disk full: free space or choose another --stor"):
            work()
    assert storage.read("d/x") == b"old"
    assert os.listdir(tmp_path / "d") == ["x"]


def test_what_is_in_the_way_is_said(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("x", b"")
    for use in (lambda: storage.write("x/y", b""), lambda: storage.read("x/y"), lambda: storage.list("x")):
        with pytest.raises(StorageError, match="not a directory"):
            use()
    storage.write("d/y", b"")
    with pytest.raises(StorageError, match="is a directory"):
        storage.read("d")


def test_where_no_directory_can_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match=r"cannot make the directory /proc/nothere: .* takes no new ones.*--storage"):
        LocalStorage("/proc/nothere/runs").write("d/x", b"")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for root in (tmp_path / "link", tmp_path / "link" / "runs"):
        with pytest.raises(StorageError, match=r"/link: it is a link to .*/gone, which is not there: mend the link"):
            LocalStorage(root).create("x", b"")

    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StorageError, match="read-only file system: mount it writable or choose another --storage"):
        LocalStorage(tmp_path / "new").write("x", b"")


def test_a_file_system_without_hard_links_is_named_not_worked_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match="hard links"):
        LocalStorage(tmp_path).create("x", b"")
    assert os.listdir(tmp_path) == []


def test_unfinished_writes_of_a_dead_process_are_not_listed_but_deleted(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("d/x", b"")
    (tmp_path / "d" / ".tmp-1-abc").write_bytes(b"half")
    assert storage.list("d") == ["x"]
    storage.delete("d")
    assert os.listdir(tmp_path) == []


def test_names_of_storages(tmp_path: Path) -> None:
    local = open_storage(f"file://{tmp_path}/with%20space")
    assert local.is_local
    assert local.local_path("x") == tmp_path / "with space" / "x"
    assert open_storage(str(tmp_path)).url() == str(tmp_path)
    mock = open_storage("mock:///bucket/dir")
    assert (mock.is_local, mock.url("x")) == (False, "mock:///bucket/dir/x")
    with pytest.raises(StorageError, match="no path on this machine"):
        mock.local_path("x")


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("runs/here", "must be absolute here"),
        ("", "must be absolute here"),
        ("nope://a/b", "give an absolute path or a URI that pyarrow knows"),
        ("file://host/path", "names an absolute path"),
        ("s3://[bad", "not a URI"),
    ],
)
def test_bad_names_are_usage_errors(uri: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        open_storage(uri)
    assert "\n" not in str(caught.value)


def test_no_secret_of_a_uri_is_shown() -> None:
    with pytest.raises(UsageError) as caught:
        open_storage("nope://key:hunter2@bucket/dir?token=hunter2")
    assert "hunter2" not in str(caught.value)
