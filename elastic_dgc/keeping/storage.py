"""Where a run is kept: the one place that turns a name given by the user into a storage."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from elastic_dgc.errors import UsageError
from elastic_dgc.keeping.storage_arrow import ArrowStorage
from elastic_dgc.keeping.storage_base import Storage, describe_os_error, storage_error
from elastic_dgc.keeping.storage_local import LocalStorage

__all__ = ["ArrowStorage", "LocalStorage", "Storage", "describe_os_error", "open_storage"]


def open_storage(uri: str) -> Storage:
    """The storage that an absolute path, a file:// URI or another URI known to pyarrow names; need not exist yet.

    Called by the driver and by every worker with the same string. Raises `UsageError` on a relative path (workers
    run in other directories) and on a URI that pyarrow does not know, `StorageError` where it cannot be reached.
    """
    if "://" not in uri:
        if not os.path.isabs(uri):
            raise UsageError(f"storage '{uri}': must be absolute here, such as '{os.path.abspath(uri or 'runs')}'")
        return LocalStorage(uri)
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise UsageError(f"storage '{uri}': not a URI ({error})") from None
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise UsageError(f"storage '{uri}': a file URI names an absolute path, such as file:///data/runs")
        return LocalStorage(unquote(parts.path))
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # user and query may hold secrets
    try:
        filesystem, root = fs.FileSystem.from_uri(uri)
    except OSError as error:
        raise storage_error("open", shown, error) from error
    except (pa.ArrowException, ValueError, TypeError, ImportError) as error:
        reason = describe_os_error(error).replace(uri, shown)
        raise UsageError(
            f"storage '{shown}': {reason}; give an absolute path or a URI that pyarrow knows, such as s3://bucket/dir"
        ) from None
    return ArrowStorage(filesystem, root, shown)
