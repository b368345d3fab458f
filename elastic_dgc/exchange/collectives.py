"""Whole dense steps by gloo: twice as fast as our frames on a fast network, where a checksum and Python's threads cost
more than the wire.

The bytes are the same and go between the same workers, so the sums are too. Only asks that say their sizes go this way;
all else, and with it the news of a lost peer, stays with the frames.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from elastic_dgc.errors import ElasticDGCError, PeerLost, UsageError
from elastic_dgc.exchange.ask import Ask, Key, Kind, Parcel, Payload
from elastic_dgc.exchange.tcp import TcpTransport
from elastic_dgc.exchange.transport import SentHook, Transport

NAMING_S = 10.0  # gloo fails at once and names nobody; our own connection to the lost peer ends soon after


def need_backend(name: str, device: str) -> None:
    """Raises `UsageError` where this torch has no such backend, or where it cannot carry tensors of this kind of device
    ('cpu' or 'cuda'). To be called before a process group is made: torch's own errors name no mend
    (pytorch/examples#311). The trainer itself needs no nccl: its messages are bytes on the CPU, whatever the model is
    on."""
    built = f"torch {torch.__version__}"
    if not dist.is_available():
        raise UsageError(f"backend '{name}': {built} was built without torch.distributed; install one from pytorch.org")
    if name not in ("gloo", "nccl"):
        raise UsageError(f"backend = '{name}' is not known here; use gloo, or nccl on NVIDIA's GPUs")
    if name == "nccl" and device != "cuda":
        raise UsageError(f"backend 'nccl' carries tensors on GPUs only, these are on the {device}; use gloo")
    if not (dist.is_nccl_available() if name == "nccl" else dist.is_gloo_available()):
        mend = "use gloo, which takes GPU tensors too, or install a torch with CUDA for Linux from pytorch.org"
        raise UsageError(
            f"backend '{name}': {built} was built without it; "
            f"{mend if name == 'nccl' else 'install one from pytorch.org'}"
        )
    if name == "nccl" and not torch.cuda.is_available():
        raise UsageError(f"backend 'nccl': {built} finds no GPU here (see nvidia-smi); use gloo")


def open_store(host: str, deadline_s: float) -> Any:
    """The store through which workers' gloo finds each other, served by this process on any free port for as long as it
    is kept; its `.port` is to be told to the others. Raises RuntimeError where there cannot be one."""
    _need_gloo()
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=deadline_s))


def open_gloo(store: tuple[str, int] | Any, host: str, rank: int, size: int, view: int, deadline_s: float) -> Any:
    """A process group of a view's workers, beside torch's global one, on the interface of `host`. `store`: of
    `open_store` where it was opened, elsewhere its address. Entered by all. Raises RuntimeError where gloo cannot."""
    _need_gloo()
    if isinstance(store, tuple):
        store = dist.TCPStore(store[0], store[1], is_master=False, timeout=timedelta(seconds=deadline_s))
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=deadline_s)
    return dist.ProcessGroupGloo(dist.PrefixStore(f"view {view}", store), rank, size, options)


def _need_gloo() -> None:
    """Frames take gloo's place where there is none, so this is no error of the user's."""
    try:
        need_backend("gloo", "cpu")
    except UsageError as error:
        raise RuntimeError(str(error)) from None


class CollectiveTransport(Transport):
    """Frames, and gloo for asks whose sizes are known. See `Transport`.

    Gloo does not notice a cut link; it is given up `silence_deadline_s` after everything should have arrived at
    `least_bytes_per_s`, which may be set to what was measured.
    """

    def __init__(self, frames: TcpTransport, gloo: Any, silence_deadline_s: float) -> None:
        self.rank, self.size = frames.rank, frames.size
        self.least_bytes_per_s = 1e5
        self._frames, self._gloo, self._silence_deadline_s = frames, gloo, silence_deadline_s
        self._sent = self._received = 0

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        return self._frames.bytes_sent + self._sent

    @property
    def bytes_received(self) -> int:  # type: ignore[override]
        return self._frames.bytes_received + self._received

    def send(self, parcels: Sequence[Parcel]) -> None:
        self._frames.send(parcels)

    def collect(self, want: Mapping[Key, int], deadline_s: float, phase: str) -> dict[Key, Payload]:
        return self._frames.collect(want, deadline_s, phase)

    def exchange(self, ask: Ask, sent: SentHook | None = None) -> Mapping[Key, Payload]:
        if ask.sizes is None:
            return self._frames.exchange(ask, sent)
        total = sum(ask.sizes[key] for key in ask.want) + sum(len(one.payload) for one in ask.send)
        until = time.monotonic() + min(ask.deadline_s, self._silence_deadline_s + total / self.least_bytes_per_s)
        arriving = {key: torch.empty(ask.sizes[key], dtype=torch.uint8) for key in ask.want}
        try:
            works = [self._gloo.recv([arriving[key]], ask.want[key], tag) for key, tag in self._tags(ask.want)]
            leaving = {(one.to, one.key): one.payload for one in ask.send}
            for to in sorted({to for to, _ in leaving}):
                for key, tag in self._tags({key: to for one, key in leaving if one == to}):
                    payload = memoryview(leaving[to, key])
                    data = torch.frombuffer(bytearray(payload) if payload.readonly else payload, dtype=torch.uint8)
                    works.append(self._gloo.send([data], to, tag))
                    self._sent += data.numel()
            if sent is not None:
                sent(ask)
            if ask.meanwhile is not None:
                ask.meanwhile()
            for work in works:
                work.wait(timedelta(seconds=max(0.01, until - time.monotonic())))
        except RuntimeError as error:
            raise self._lost(ask, error) from None
        self._received += sum(ask.sizes[key] for key in ask.want)
        return {key: value.numpy().data for key, value in arriving.items()}

    @staticmethod
    def _tags(keys: Mapping[Key, int]) -> list[tuple[Key, int]]:
        """A number for each key among those of its rank: both ends count alike."""
        counts: dict[int, int] = {}
        found = []
        for key in sorted(keys):
            found.append((key, counts.setdefault(keys[key], 0)))
            counts[keys[key]] += 1
        return found

    def _lost(self, ask: Ask, error: RuntimeError) -> ElasticDGCError:
        """Who is gone: the frames' connections know it, at once or a moment later."""
        nothing = Key(Kind.PING, -1, -1)  # never sent as a payload
        peers = sorted(set(ask.want.values()) | {one.to for one in ask.send})
        wanted: dict[Key, int] = {**ask.want, **{replace(nothing, part=rank): rank for rank in peers}}
        try:
            self._frames.collect(wanted, NAMING_S, ask.phase)
        except PeerLost as lost:
            if self._frames.lost:
                return lost
        text = str(error).splitlines()[0]
        return PeerLost(f"gloo failed in phase '{ask.phase}' with all connections alive: {text}", peers[0])

    def forget(self, before_attempt: int) -> None:
        self._frames.forget(before_attempt)

    def close(self) -> None:
        self._gloo = None
        self._frames.close()
