"""Random numbers as a pure function of a key: (seed, attempt, virtual worker, ...) or (seed, epoch, sample).

Nothing here is state, so nothing has to be saved, handed over or restored, and any worker can compute a virtual
worker's numbers again. The mixing function is splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)

UInts = npt.NDArray[np.uint64]


def _mix(x: UInts) -> UInts:
    with np.errstate(over="ignore"):
        x = (x + _GOLDEN).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * _MIX1
        x = (x ^ (x >> np.uint64(27))) * _MIX2
        return x ^ (x >> np.uint64(31))


def hash_many(*key: int | npt.NDArray[np.integer]) -> UInts:
    """64 random bits for every element of a key whose parts are integers or equally long int arrays.

    The order of the parts counts. Returns uint64[n] (n = 1 when all parts are integers).
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in key:
        bits = np.atleast_1d(np.asarray(part, dtype=np.int64)).view(np.uint64)
        state = _mix(state ^ _mix(bits))
    return state


def hash_key(*key: int) -> int:
    """64 random bits for one key."""
    return int(hash_many(*key)[0])


def uniforms(*key: int | npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """float64[n] in [0, 1) for every element of a key (see `hash_many`)."""
    return (hash_many(*key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(n: int, *key: int) -> npt.NDArray[np.int64]:
    """A random permutation of 0..n-1 that depends on the key alone, on every platform and numpy version."""
    return np.argsort(hash_many(hash_key(*key) & 0x7FFFFFFFFFFFFFFF, np.arange(n)), kind="stable").astype(np.int64)


def seed_everything(*key: int) -> None:
    """Seed torch (every device), numpy and `random` alike from a key. Changes the global generators.

    Not by `torch.manual_seed`: it visits every kind of device there might be, half a millisecond each time.
    """
    import torch

    seed = hash_key(*key)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
