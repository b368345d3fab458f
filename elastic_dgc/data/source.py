"""What the trainer reads from: a source of numbered samples, and the source that wraps any map-style data set."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import default_collate

from elastic_dgc.errors import DataError, UsageError
from elastic_dgc.log import logger
from elastic_dgc.seeds import hash_key, seed_everything

Rows = npt.NDArray[np.int64]


class Source(ABC):
    """Samples numbered 0..n-1, loaded as collated batches.

    `load` must be a pure function of its arguments and of the seed given at construction: a sample may be loaded
    again, by another worker, after a failure, and must come out the same.
    """

    group_sizes: Sequence[int] | Rows  # rows of each row group, in order; their sum is the number of samples
    fingerprint: str  # short hex that changes when the data changes (names, sizes, counts, schema; not times)
    draws_globally: bool = (
        False  # `load` uses the process's generators: the loader then calls it in the caller's thread
    )

    def __len__(self) -> int:
        return int(np.sum(self.group_sizes))

    @abstractmethod
    def load(self, rows: Rows, epoch: int | None) -> Any:
        """A collated batch of the given rows, on the CPU. `epoch` None means evaluation: no augmentation.

        Called by the loader, from several threads at once unless `draws_globally`.
        """

    def left_out(self, rows: Rows, epoch: int | None) -> Rows:
        """Which of the rows the batch that `load` returned for them does not contain. Valid after that `load`."""
        return np.zeros(0, dtype=np.int64)

    def corrupt_reason(self, row: int) -> str | None:
        """Why a row that was left out cannot be used at all, with its place; None where it was left out for something
        else. Valid on the worker that loaded it."""
        del row
        return None


class MapStyle(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def add_note(error: BaseException, text: str) -> None:
    """Add a line to an exception that passes through (PEP 678; by hand, for Python 3.10)."""
    error.__notes__ = [*getattr(error, "__notes__", []), text]


class MapSource(Source):
    """Any map-style data set (`__len__`, `__getitem__`), a torch one or a list.

    `transform(sample, rng)` is applied in training only; its `numpy.random.Generator` is made from (seed, epoch,
    sample id), so augmentation does not depend on who loads. A data set that draws from torch's, numpy's or
    Python's global generators inside `__getitem__` (random torchvision transforms do) is found out at construction:
    the generators are then seeded from the same key before each sample and put back after, and the batches are
    loaded in the training thread, without prefetching. `transform` plus its `rng` is the fast way.

    Exceptions of the user's code pass through with a note that names the sample. Raises `UsageError` if the object
    is not map-style, `DataError` if it is empty.
    """

    def __init__(
        self,
        dataset: MapStyle,
        collate: Callable[[list[Any]], Any] = default_collate,
        transform: Callable[[Any, np.random.Generator], Any] | None = None,
        seed: int = 0,
    ) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise UsageError(f"{type(dataset).__qualname__} is no map-style data set: give it __len__ and __getitem__")
        if len(dataset) == 0:
            raise DataError(f"the data set {type(dataset).__qualname__} is empty: training needs at least 2 samples")
        self.dataset = dataset
        self.collate = collate
        self.transform = transform
        self.seed = seed
        self.group_sizes = np.ones(len(dataset), dtype=np.int64)
        with _global_generators_kept():
            seed_everything(0)
            before = _global_state()
            self._get(0)
            self.draws_globally = _global_state() != before
            self.fingerprint = self._fingerprint()

    def load(self, rows: Rows, epoch: int | None) -> Any:
        if self.draws_globally:
            with _global_generators_kept():
                return self._load(rows, epoch)
        return self._load(rows, epoch)

    def _load(self, rows: Rows, epoch: int | None) -> Any:
        samples = []
        for row in rows.tolist():
            if self.draws_globally:
                seed_everything(self.seed, -1 if epoch is None else epoch, row)
            sample = self._get(row)
            if self.transform is not None and epoch is not None:
                try:
                    sample = self.transform(sample, np.random.default_rng(hash_key(self.seed, epoch, row)))
                except Exception as error:
                    add_note(error, f"in the transform of sample {row} in epoch {epoch}")
                    raise
            samples.append(sample)
        try:
            return self.collate(samples)
        except Exception as error:
            add_note(error, f"while putting samples {rows.tolist()[:16]} into one batch")
            raise

    def _get(self, row: int) -> Any:
        try:
            return self.dataset[row]
        except Exception as error:
            add_note(error, f"in sample {row} of the data set {type(self.dataset).__qualname__}")
            raise

    def _fingerprint(self) -> str:
        n = len(self.dataset)
        name = type(self.dataset).__qualname__
        digest = hashlib.blake2b(f"{name} {n}".encode(), digest_size=8)
        probes = []
        for row in (0, n // 2, n - 1, 0):
            seed_everything(0, row)
            probes.append(_as_bytes(self._get(row)))
        if probes[0] != probes[-1]:
            logger().warning(
                f"{name}[0] gave two different samples: a data set must be a pure function of the index, "
                "otherwise a run that lost a worker or was resumed cannot end with the same weights"
            )
        elif all(probe is not None for probe in probes):
            for probe in probes:
                digest.update(probe or b"")
        return digest.hexdigest()


def _as_bytes(sample: Any) -> bytes | None:
    """The bytes of a sample made of tensors, arrays, images and plain values; None for anything else."""
    if isinstance(sample, torch.Tensor):
        flat = sample.detach().cpu().contiguous().reshape(-1)
        return f"{sample.dtype} {tuple(sample.shape)} ".encode() + flat.view(torch.uint8).numpy().tobytes()
    if isinstance(sample, np.ndarray | np.generic):
        array = np.asarray(sample)
        return None if array.dtype.hasobject else f"{array.dtype} {array.shape} ".encode() + array.tobytes()
    if isinstance(sample, Image.Image):
        return f"{sample.mode} {sample.size} ".encode() + sample.tobytes()
    if isinstance(sample, bool | int | float | complex | str | bytes | None):
        return repr(sample).encode()
    if isinstance(sample, dict):
        sample = [part for item in sample.items() for part in item]
    if isinstance(sample, list | tuple):
        parts = [_as_bytes(part) for part in sample]
        return None if any(part is None for part in parts) else repr(parts).encode()
    return None


def _global_state() -> tuple[bytes, str, int]:
    name, keys, position, *_ = np.random.get_state()
    return (
        torch.get_rng_state().numpy().tobytes(),
        f"{name} {position} {hash(np.asarray(keys).tobytes())}",
        hash(random.getstate()),
    )


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    """Whatever is drawn or seeded inside, the global CPU generators go on outside as if nothing had happened."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
