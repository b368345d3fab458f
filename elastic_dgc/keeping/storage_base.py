"""The contract of a storage: a tree of small and large files that is written whole or not at all.

Checkpoints, views and heartbeats need few things of a file system, and object stores can give them all. Everything
that is kept goes through here, so that errors, atomicity and names are the same on a local disk, NFS, S3 or GS.
"""

from __future__ import annotations

import errno
import posixpath
from abc import ABC, abstractmethod
from pathlib import Path

from elastic_dgc.errors import FileMissing, StorageError

Names = list[str]  # inside a class with a method `list` the builtin cannot be named

_ELSEWHERE = "choose another --storage"
_WORDS = {
    errno.ENOSPC: f"disk full: free space or {_ELSEWHERE}",
    errno.EDQUOT: f"disk quota used up: free space or {_ELSEWHERE}",
    errno.EACCES: f"permission denied: give this user access to it or {_ELSEWHERE}",
    errno.EPERM: f"operation not permitted: give this user access to it or {_ELSEWHERE}",
    errno.EROFS: f"read-only file system: mount it writable or {_ELSEWHERE}",
    errno.ENOTDIR: f"a part of the path is not a directory: move that file away or {_ELSEWHERE}",
    errno.EISDIR: "it is a directory where a file should be: move it away",
    errno.ENOENT: "no such file or directory: check the name, and that it was not deleted",
    errno.EFBIG: f"file too large for this file system or limit: {_ELSEWHERE}",
    errno.ENAMETOOLONG: "name too long: choose a shorter one",
    errno.EIO: f"input/output error: check the disk or mount, or {_ELSEWHERE}",
    errno.ESTALE: "stale network file handle: mount it again",
}


def describe_os_error(error: BaseException) -> str:
    """The reason of a failed operation in words and what mends it, on one line."""
    code = getattr(error, "errno", None)
    if code is None:
        for kind, its_code in _BY_CLASS:
            if isinstance(error, kind):
                code = its_code
    if code in _WORDS:
        return _WORDS[code]
    return (" ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__).rstrip(".")


_BY_CLASS: tuple[tuple[type[BaseException], int], ...] = (
    (FileNotFoundError, errno.ENOENT),
    (PermissionError, errno.EACCES),
    (NotADirectoryError, errno.ENOTDIR),
    (IsADirectoryError, errno.EISDIR),
)


def storage_error(what: str, url: str, error: BaseException) -> StorageError:
    """The error of an operation ('write', 'read' ...) on a full name: `FileMissing` where the file is not there."""
    kind = FileMissing if isinstance(error, FileNotFoundError) and what == "read" else StorageError
    return kind(f"cannot {what} {url}: {describe_os_error(error)}")


def clean(path: str, *, allow_root: bool = False) -> str:
    """A path relative to the root, checked. Raises ValueError on absolute paths, empty parts and '..'."""
    if path == "" and allow_root:
        return path
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"storage path {path!r}: must be relative, '/'-separated, without empty, '.' or '..' parts")
    return path


def join(root: str, path: str) -> str:
    return posixpath.join(root, path) if path else root


class Storage(ABC):
    """A directory and what is below it. Paths are relative to it and '/'-separated.

    Every method raises `StorageError`, one line with the full name, the reason and the mend, where the file system
    refuses; `ValueError` where a path is not relative. Methods may be called from several threads. Used by the
    checkpoints, and by membership through its own narrower contract.
    """

    is_local: bool  # files can be opened by name on this machine

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Put `data` there, replacing what was there: whole or not at all. Makes directories on the way."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Put `data` there if nothing is; False, and nothing changed, where something is. Never half a file."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole content. Raises `FileMissing` where there is no such file."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """The size of a file in bytes, None where there is no such file."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether a file or a directory is there. Not being allowed to look is an error, not 'no'."""

    @abstractmethod
    def list(self, path: str = "") -> Names:
        """The names in a directory, sorted; none where there is no directory. Unfinished writes are not listed."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file or a directory with all it holds; fine where nothing is there."""

    @abstractmethod
    def child(self, path: str) -> Storage:
        """The storage whose root is this directory, which need not exist yet."""

    @abstractmethod
    def url(self, path: str = "") -> str:
        """The full name for messages, without credentials."""

    @abstractmethod
    def local_path(self, path: str = "") -> Path:
        """Where the file lies on this machine. Raises `StorageError` unless `is_local`."""
