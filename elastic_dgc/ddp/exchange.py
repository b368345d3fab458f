"""The collectives: one gather of small rows, one of messages, sums of whole gradients. They count what they are given.

Rows and messages are bytes on the CPU. Where DDP's own group cannot carry them (nccl) a gloo group of the same ranks
does. Every wait ends at the group's timeout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_dgc.ddp.plan import PREFIX_BYTES
from elastic_dgc.errors import MessageError

_LENGTH = struct.Struct("<Q")
assert _LENGTH.size == PREFIX_BYTES


class Exchange:
    """The collectives of one DDP model, over its `group`. `upload_bytes` is what this rank has handed to them so far,
    padding included.

    To be made by all ranks of the group at the same time: on nccl it makes a group of its own.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        if "cpu:" in str(dist.get_backend_config(group)):
            self._bytes: Any = group
        else:
            ranks = dist.get_process_group_ranks(group)
            self._bytes = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self.upload_bytes = 0

    def gather(self, payload: bytes, size: int) -> list[bytes]:
        """Every rank's payload, by rank. `size`: the bytes that travel, equal everywhere; a payload and its length must
        fit. Raises `MessageError` if a length that arrives does not."""
        if PREFIX_BYTES + len(payload) > size:
            raise MessageError(f"a message of {len(payload)} bytes does not fit the {size} that the schedule gives it")
        sent = torch.zeros(size, dtype=torch.uint8)
        framed = _LENGTH.pack(len(payload)) + payload
        sent[: len(framed)] = torch.frombuffer(bytearray(framed), dtype=torch.uint8)
        arrived = [torch.empty(size, dtype=torch.uint8) for _ in range(self.world)]
        dist.all_gather(arrived, sent, group=self._bytes)
        self.upload_bytes += size
        return [_payload(one, rank) for rank, one in enumerate(arrived)]

    def sum(self, values: Tensor) -> None:
        """Sum over all ranks, in place. `values`: fp32, contiguous, on the parameters' device."""
        dist.all_reduce(values, group=self.group)
        self.upload_bytes += values.nbytes


def _payload(arrived: Tensor, rank: int) -> bytes:
    raw = arrived.numpy().data
    (length,) = _LENGTH.unpack_from(raw)
    if length > len(raw) - PREFIX_BYTES:
        raise MessageError(f"rank {rank} announces {length} bytes where {len(raw) - PREFIX_BYTES} fit")
    return bytes(raw[PREFIX_BYTES : PREFIX_BYTES + length])


def texts(exchange: Exchange, own: str, size: int = 512) -> Sequence[str]:
    """Every rank's line of text, cut to what fits. Entered by all ranks alike, when a vote says that it is needed."""
    room = size - PREFIX_BYTES
    return [raw.decode(errors="replace") for raw in exchange.gather(own.encode()[:room], size)]
