"""The CIFAR-10 and CIFAR-100 python archives as they are downloaded, read without trusting their pickles."""

from __future__ import annotations

import io
import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_dgc.errors import DataError

_LAYOUTS = {  # the names file of each data set -> its label key, names key, and files by split
    "batches.meta": (
        "labels",
        "label_names",
        {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
    ),
    "meta": ("fine_labels", "fine_label_names", {"train": ["train"], "test": ["test"]}),
}

_RECONSTRUCT = np.zeros(1).__reduce__()[0]  # what numpy's own pickles name, at its address of then and now
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


@dataclass
class Cifar:
    """Class names and, by split, images uint8[n, 32, 32, 3] and labels int64[n]."""

    classes: list[str]
    splits: dict[str, tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]


def is_cifar(path: Path) -> bool:
    """Whether a path is a tar archive, or a folder that was one."""
    return _folder(path) is not None or (path.is_file() and tarfile.is_tarfile(path))


def read_cifar(path: Path) -> Cifar:
    """Read an archive (`cifar-10-python.tar.gz`) or the folder it unpacks to. Raises `DataError`."""
    files = _files(path)
    for meta, (label_key, names_key, splits) in _LAYOUTS.items():
        if meta not in files:
            continue
        names = _field(_load(files[meta], f"{path}: {meta}"), names_key, f"{path}: {meta}")
        classes = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
        read = {}
        for split, members in splits.items():
            missing = [name for name in members if name not in files]
            if missing:
                raise DataError(f"{path}: {', '.join(missing)} is missing, is the download complete?")
            parts = [_batch(files[name], label_key, f"{path}: {name}", len(classes)) for name in members]
            read[split] = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
        return Cifar(classes, read)
    there = ", ".join(sorted(files)) or "nothing"
    raise DataError(f"{path} is no CIFAR python archive: neither batches.meta nor meta is in it, but {there}")


def _batch(
    content: bytes, label_key: str, where: str, classes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    batch = _load(content, where)
    data, labels = _field(batch, "data", where), np.asarray(_field(batch, label_key, where))
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == 3072):
        raise DataError(f"{where}: 'data' must be an array of bytes with 3072 columns")
    if labels.shape != (len(data),) or labels.dtype.kind not in "iu" or not np.isin(labels, np.arange(classes)).all():
        raise DataError(f"{where}: there must be {len(data)} labels of 0..{classes - 1}")
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels.astype(np.int64)


def _folder(path: Path) -> Path | None:
    for folder in (path, path / "cifar-10-batches-py", path / "cifar-100-python"):
        if any((folder / meta).is_file() for meta in _LAYOUTS):
            return folder
    return None


def _files(path: Path) -> dict[str, bytes]:
    """The contents of the files that belong to a known layout, by base name."""
    wanted = {name for *_, splits in _LAYOUTS.values() for names in splits.values() for name in names} | set(_LAYOUTS)
    try:
        folder = _folder(path)
        if folder is not None:
            return {name: (folder / name).read_bytes() for name in wanted if (folder / name).is_file()}
        found = {}
        with tarfile.open(path) as archive:
            for member in archive:  # never unpacked to disk
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None and (name := member.name.rsplit("/", 1)[-1]) in wanted:
                    found[name] = stream.read()
        return found
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DataError(f"{path} cannot be read ({error}), is the download complete?") from error


class _Restricted(pickle.Unpickler):
    """Builds arrays, bytes, text and containers, and refuses to look up anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how protocol 2 stores bytes
            return _encode
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it wants to run {module}.{name}") from None


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in the encoding {encoding!r}")
    return text.encode("latin1")


def _load(content: bytes, where: str) -> Any:
    try:
        return _Restricted(io.BytesIO(content), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise DataError(f"{where} is not a pickle of arrays and text ({error})") from error


def _field(content: Any, name: str, where: str) -> Any:
    if isinstance(content, dict):
        for key in (name.encode(), name):
            if key in content:
                return content[key]
    raise DataError(f"{where} has no '{name}'")
