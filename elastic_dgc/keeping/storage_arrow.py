"""Files on any file system that pyarrow knows: S3, GS, Azure, HDFS, or one of its Python file systems."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from elastic_dgc.errors import StorageError
from elastic_dgc.keeping.storage_base import Names, Storage, clean, join, storage_error

_NO_DIRECTORIES = ("s3", "gcs", "abfs")  # names there are flat; making a directory would leave an empty object


class ArrowStorage(Storage):
    """A prefix of an object store, or a directory of another file system.

    `write` is one put: atomic on object stores; elsewhere a crash can leave a part of the file, which the checksums
    of checkpoints find. `create` is weaker than on a local disk: it looks and then puts, so that two who come within
    milliseconds of each other may both believe to be first.
    """

    is_local = False

    def __init__(self, filesystem: fs.FileSystem, root: str, url: str) -> None:
        self.filesystem = filesystem
        self.root = root.rstrip("/")
        self._url = url.rstrip("/")

    def __repr__(self) -> str:
        return f"ArrowStorage({self._url!r})"

    def write(self, path: str, data: bytes) -> None:
        self._put("write", path, data)

    def create(self, path: str, data: bytes) -> bool:
        if self.exists(path):
            return False
        self._put("create", path, data)
        return True

    def read(self, path: str) -> bytes:
        with self._errors("read", path), self.filesystem.open_input_stream(self._full(path)) as stream:
            return bytes(stream.read())

    def size(self, path: str) -> int | None:
        info = self._info(path)
        return int(info.size) if info.type == fs.FileType.File else None

    def exists(self, path: str) -> bool:
        return bool(self._info(path).type != fs.FileType.NotFound)

    def list(self, path: str = "") -> Names:
        selector = fs.FileSelector(self._full(path, allow_root=True), allow_not_found=True)
        with self._errors("list", path):
            return sorted(info.base_name for info in self.filesystem.get_file_info(selector))

    def delete(self, path: str) -> None:
        target = self._full(path)
        kind = self._info(path).type
        # What vanishes meanwhile is being deleted by somebody else.
        with self._errors("delete", path), contextlib.suppress(FileNotFoundError):
            if kind == fs.FileType.Directory:
                self.filesystem.delete_dir(target)
            elif kind != fs.FileType.NotFound:
                self.filesystem.delete_file(target)

    def child(self, path: str) -> ArrowStorage:
        return ArrowStorage(self.filesystem, self._full(path, allow_root=True), self.url(path))

    def url(self, path: str = "") -> str:
        return join(self._url, clean(path, allow_root=True))

    def local_path(self, path: str = "") -> Path:
        raise StorageError(f"{self.url(path)} has no path on this machine: give a directory to --storage")

    def _put(self, what: str, path: str, data: bytes) -> None:
        target = self._full(path)
        with self._errors(what, path):
            if self.filesystem.type_name not in _NO_DIRECTORIES and "/" in target:
                self.filesystem.create_dir(target.rpartition("/")[0] or "/", recursive=True)
            with self.filesystem.open_output_stream(target) as stream:
                stream.write(data)

    def _info(self, path: str) -> fs.FileInfo:
        with self._errors("look at", path):
            return self.filesystem.get_file_info(self._full(path, allow_root=True))

    def _full(self, path: str, *, allow_root: bool = False) -> str:
        return join(self.root, clean(path, allow_root=allow_root))

    @contextlib.contextmanager
    def _errors(self, what: str, path: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise storage_error(what, self.url(path), error) from error
