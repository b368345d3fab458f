"""Digests that a simulation takes thousands of times: of bytes, of everything."""

from __future__ import annotations

import hashlib

from torch import Tensor

from elastic_dgc.step.replica import Replica
from elastic_dgc.step.state import OwnedState


def _add(digest: hashlib.blake2b, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
    digest.update(tensor.detach().contiguous().numpy().tobytes())


def shared_digest(replica: Replica) -> str:
    """Of all shared state (R2): the weights, the optimizer's state, the counters."""
    digest = hashlib.blake2b(repr(sorted(replica.counters.export().items())).encode(), digest_size=16)
    _add(digest, "weights", replica.weights)  # the memory of all parameters: none of the network's are frozen
    for name, value in sorted(replica.applier.state().items()):
        _add(digest, name, value)
    return digest.hexdigest()


def owned_digest(one: OwnedState) -> str:
    """Of one virtual worker's owned state: u, v, forward's buffers, its tag."""
    digest = hashlib.blake2b(f"{one.virtual_worker} {one.tag}".encode(), digest_size=16)
    for name, value in (("u", one.u), ("v", one.v), *sorted(one.buffers.items())):
        if value is not None:
            _add(digest, name, value)
    return digest.hexdigest()


def bytes_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
