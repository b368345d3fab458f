"""A benchmark's worker in its network: gloo for torch's sides, our transport for ours, both on the same address."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from elastic_dgc.exchange.listener import Listener
from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.tcp import TcpTransport
from elastic_dgc.trainer.group import Group

DEADLINE_S = 600.0  # of everything that waits for another worker
SILENCE_S = 30.0
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Seat:
    """A worker's place: its rank of `size`, the address of its host that the others reach, and where rank 0 keeps the
    store by which gloo finds its peers. `secret` is what only these workers know."""

    rank: int
    size: int
    host: str
    store: tuple[str, int]
    secret: bytes


def interface_of(address: str) -> str | None:
    """The name of this machine's network interface with an IPv4 address, such as 'eth0'; None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None


@contextmanager
def joined(seat: Seat, transport: str, collectives: bool) -> Iterator[Group]:
    """This process in the default process group and in a group of ours, until the end of the block. The link is
    measured, and routes are chosen by it, as when a run begins, unless `transport` names one; `collectives`: gloo may
    carry our whole gradients.

    gloo would bind to the interface that the host's name resolves to, often the loopback; it is told the seat's, unless
    GLOO_SOCKET_IFNAME says which.
    """
    interface = interface_of(seat.host)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    store = dist.TCPStore(*seat.store, is_master=False, timeout=timedelta(seconds=DEADLINE_S))
    dist.init_process_group(
        "gloo", store=store, rank=seat.rank, world_size=seat.size, timeout=timedelta(seconds=DEADLINE_S)
    )
    try:
        with Listener(seat.host) as listener:
            addresses: list[tuple[str, int]] = [("", 0)] * seat.size
            dist.all_gather_object(addresses, listener.address)
            frames = TcpTransport(listener, seat.rank, addresses, bytes(16), 0, seat.secret)
            group = Group(Members.of(seat.rank, seat.size, seat.size), frames, 0, DEADLINE_S)
            try:
                hosts = tuple(address[0] for address in addresses)
                group.learn_link(hosts, transport, (seat.host, SILENCE_S) if collectives else None)
                yield group
            finally:
                group.transport.close()
    finally:
        dist.destroy_process_group()
