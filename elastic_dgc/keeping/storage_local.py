"""Files on a local disk or a mounted network file system: written beside their place, synced, renamed into it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from elastic_dgc.errors import StorageError
from elastic_dgc.keeping.storage_base import Names, Storage, clean, storage_error

_TMP = ".tmp-"
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # what file systems answer that cannot sync a directory
_TRIES = 3
_NO_LINK = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class LocalStorage(Storage):
    """A directory of this machine. `write` survives a loss of power once it has returned, `create` is a hard link,
    which is exclusive on NFS too."""

    is_local = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.normpath(os.fspath(root))
        if not os.path.isabs(self.root):
            raise ValueError(f"root {self.root!r} of a local storage must be absolute")

    def __repr__(self) -> str:
        return f"LocalStorage({self.root!r})"

    def write(self, path: str, data: bytes) -> None:
        target = self._full(path)
        with self._errors("write", target), _complete(target, data) as tmp:
            os.replace(tmp, target)
            _sync_directory(os.path.dirname(target))

    def create(self, path: str, data: bytes) -> bool:
        target = self._full(path)
        with self._errors("create", target):
            if os.path.lexists(target):
                return False
            with _complete(target, data) as tmp:
                try:
                    os.link(tmp, target)
                except FileExistsError:
                    # On NFS the answer to a link that succeeded can be lost and the repeated request refused.
                    if not os.path.samefile(tmp, target):
                        return False
                except OSError as error:
                    if error.errno in _NO_LINK:
                        raise StorageError(
                            f"cannot create {target}: this file system has no hard links, which files that are "
                            "written once need: choose another --storage"
                        ) from error
                    raise
                _sync_directory(os.path.dirname(target))
        return True

    def read(self, path: str) -> bytes:
        target = self._full(path)
        with self._errors("read", target), open(target, "rb") as file:
            return file.read()

    def size(self, path: str) -> int | None:
        status = self._stat(path)
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None

    def exists(self, path: str) -> bool:
        return self._stat(path) is not None

    def list(self, path: str = "") -> Names:
        target = self._full(path, allow_root=True)
        with self._errors("list", target):
            try:
                return sorted(name for name in os.listdir(target) if not name.startswith(_TMP))
            except FileNotFoundError:
                return []

    def delete(self, path: str) -> None:
        target = self._full(path)
        # What vanishes meanwhile is being deleted by somebody else, who goes on with the rest.
        with self._errors("delete", target), contextlib.suppress(FileNotFoundError):
            if os.path.isdir(target) and not os.path.islink(target):
                shutil.rmtree(target)
            else:
                os.unlink(target)

    def child(self, path: str) -> LocalStorage:
        return LocalStorage(self._full(path, allow_root=True))

    def url(self, path: str = "") -> str:
        return self._full(path, allow_root=True)

    def local_path(self, path: str = "") -> Path:
        return Path(self._full(path, allow_root=True))

    def _full(self, path: str, *, allow_root: bool = False) -> str:
        path = clean(path, allow_root=allow_root)
        return os.path.join(self.root, path) if path else self.root

    def _stat(self, path: str) -> os.stat_result | None:
        target = self._full(path, allow_root=True)
        with self._errors("look at", target):
            try:
                return os.stat(target)
            except (FileNotFoundError, NotADirectoryError):
                return None

    @contextlib.contextmanager
    def _errors(self, what: str, target: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error(what, target, error) from error


@contextlib.contextmanager
def _complete(target: str, data: bytes) -> Iterator[str]:
    """A synced file with this content under a name of its own beside `target`; gone when the block ends."""
    directory = os.path.dirname(target)
    _make_directories(directory)
    tmp = os.path.join(directory, f"{_TMP}{os.getpid()}-{uuid.uuid4().hex}")
    try:
        with open(tmp, "xb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        yield tmp
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(tmp)


def _make_directories(directory: str) -> None:
    """Like os.makedirs, but each new name is synced into its parent: a file in a lost directory is a lost file.

    Raises `StorageError` where a name on the way is no directory, or cannot become one."""
    for _ in range(_TRIES):
        try:
            for one in _missing(directory):
                _make_directory(one)
        except FileNotFoundError as error:
            reason = error  # its parent was deleted meanwhile, or the file system (/proc) makes no directories
        else:
            return
    raise StorageError(
        f"cannot make the directory {reason.filename}: the file system of {os.path.dirname(str(reason.filename))} "
        "takes no new ones: choose another --storage"
    ) from reason


def _missing(directory: str) -> list[str]:
    """This directory and those above it that are not there, the uppermost first."""
    found: list[str] = []
    while not os.path.isdir(directory):
        if os.path.islink(directory) and not os.path.exists(directory):
            raise StorageError(
                f"cannot make the directory {directory}: it is a link to {os.readlink(directory)}, which is not there: "
                "mend the link, or choose another --storage"
            )
        found.append(directory)
        directory = os.path.dirname(directory)
    return found[::-1]


def _make_directory(directory: str) -> None:
    try:
        os.mkdir(directory)
    except FileExistsError:
        if not os.path.isdir(directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from None
        return
    _sync_directory(os.path.dirname(directory))


def _sync_directory(directory: str) -> None:
    """Make names in a directory durable, where the file system and this user's rights allow to ask for that."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return  # a parent that may be entered but not read
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(handle)
