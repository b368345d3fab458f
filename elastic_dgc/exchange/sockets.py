"""Small helpers on TCP sockets: reading with a deadline, names of addresses, and what a forked child must not keep."""

from __future__ import annotations

import os
import socket
import time
import weakref
from pathlib import Path

_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_children(sock: socket.socket) -> socket.socket:
    """Close this socket in every process that is forked from now on.

    A data loader's forked workers inherit all sockets. While one of them lives, the kernel keeps the connection of a
    killed trainer open, and its peers would learn of the death only by silence.
    """
    _open.add(sock)
    return sock


def _forked() -> None:
    for sock in list(_open):
        sock.close()  # closes the child's descriptor only; `shutdown` would end the parent's connection


os.register_at_fork(after_in_child=_forked)


def read_exactly(sock: socket.socket, length: int, until: float) -> bytes:
    """Read `length` bytes before the monotonic time `until`, however they trickle in.

    Changes the socket's timeout. Raises TimeoutError, or ConnectionError when the other side ends early.
    """
    data = bytearray()
    while len(data) < length:
        remaining_s = until - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError(f"{len(data)} of {length} bytes arrived in time")
        sock.settimeout(remaining_s)
        chunk = sock.recv(length - len(data))
        if not chunk:
            raise ConnectionError(f"the other side ended the connection after {len(data)} of {length} bytes")
        data += chunk
    return bytes(data)


def shut(sock: socket.socket) -> None:
    """End both directions, which wakes every thread that waits on this socket. Does nothing on one that has ended."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already: that is what was asked for


def name_of(address: tuple[str, int]) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_ports() -> str:
    """The ports that this system gives to whoever asks for any: '32768-60999', where it says so."""
    try:
        low, high = _PORT_RANGE.read_text().split()
    except (OSError, ValueError):
        return "see the system's range of ephemeral ports"
    return f"net.ipv4.ip_local_port_range: {low}-{high}"
