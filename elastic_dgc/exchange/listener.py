"""The listening socket of a worker, and the thread that lets connections in one by one without being blocked by any.

The listener is made first, so that its address can be published, and outlives the transports of several views; an
`Acceptor` serves it for as long as one transport lives. What connects is a stranger until `admit` says otherwise.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from elastic_dgc.errors import UsageError
from elastic_dgc.exchange.sockets import close_in_children, name_of, shut
from elastic_dgc.log import logger

MAX_HANDSHAKES = 64
_MAX_LOGGED = 100
_RETRY_S = 0.2


class Listener:
    """A bound, listening TCP socket. Use as a context manager, or call `close`."""

    def __init__(self, host: str = "", port: int = 0, *, publish: str | None = None) -> None:
        """Bind to `host` ("": all IPv4 interfaces, "::": IPv6 and IPv4) and `port` (0: any free one).

        `publish` is the host that peers shall connect to, where it is another than the one bound to (a container, or
        all interfaces). Raises `UsageError` when the address cannot be had.
        """
        try:
            self.sock = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=256,
                dualstack_ipv6=host == "::",
            )
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"cannot listen on {name_of((host or '0.0.0.0', port))}: {error}; "
                "choose another port (0 takes any free one) or an address of this machine"
            ) from None
        close_in_children(self.sock)
        self.sock.setblocking(False)
        unnamed = host in ("", "0.0.0.0", "::")
        self.address: tuple[str, int] = (
            publish or ("127.0.0.1" if unnamed else host),
            int(self.sock.getsockname()[1]),
        )
        """(host, port) for peers to connect to; without `publish` on all interfaces: of this machine only."""
        self.served = threading.Lock()
        """Held while an `Acceptor` serves this listener."""

    def close(self) -> None:
        """Stop listening. Connections that exist stay."""
        self.sock.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Acceptor:
    """Accepts on a listener until `stop`, each connection in a short-lived thread of its own."""

    def __init__(self, listener: Listener, admit: Callable[[socket.socket], str | None], rank: int) -> None:
        """`admit(socket)` takes a connection over and returns None, or returns why it is refused; then it is closed
        here. It must keep a deadline of its own. Raises RuntimeError if the listener is being served already."""
        if not listener.served.acquire(blocking=False):
            raise RuntimeError(f"{name_of(listener.address)} is served by another transport: close that one first")
        self.refused = 0
        self.last_refusal = ""
        self._listener, self._admit = listener, admit
        self._log = logger(worker=rank)
        self._logged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._guests: dict[threading.Thread, socket.socket] = {}
        self._stop = threading.Event()
        self._wake, self._waker = (close_in_children(end) for end in socket.socketpair())
        self._thread = threading.Thread(target=self._accept, name=f"dgc-accept-{rank}", daemon=True)
        self._thread.start()

    def stop(self, until: float) -> None:
        """End the thread and every handshake in progress, by the monotonic time `until`. The listener stays open."""
        self._stop.set()
        shut(self._waker)
        self._thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            guests = dict(self._guests)
        for guest in guests.values():
            shut(guest)
        for thread in guests:
            thread.join(max(0.0, until - time.monotonic()))
        self._wake.close()
        self._waker.close()
        self._listener.served.release()

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener.sock, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            poll.poll()
            if self._stop.is_set() or self._listener.sock.fileno() < 0:
                return
            try:
                guest, address = self._listener.sock.accept()
            except (BlockingIOError, ConnectionError):
                continue  # the one who knocked has gone
            except OSError as error:
                # Out of descriptors, say: others end soon, and those who knock wait in the backlog.
                self._log.warning("cannot accept a connection for the moment: %s", error)
                self._stop.wait(_RETRY_S)
                continue
            self._welcome(guest, name_of(address))

    def _welcome(self, guest: socket.socket, name: str) -> None:
        close_in_children(guest)
        thread = threading.Thread(target=self._ask_in, args=(guest, name), name="dgc-handshake", daemon=True)
        with self._lock:
            full = len(self._guests) >= MAX_HANDSHAKES
            if not full:
                self._guests[thread] = guest
        if full:
            self._refuse(guest, name, f"more than {MAX_HANDSHAKES} handshakes at once")
        else:
            thread.start()

    def _ask_in(self, guest: socket.socket, name: str) -> None:
        reason: str | None = "the handshake failed"
        try:
            reason = self._admit(guest)
        finally:
            with self._lock:
                self._guests.pop(threading.current_thread(), None)
            if reason is not None:
                self._refuse(guest, name, reason)

    def _refuse(self, guest: socket.socket, name: str, reason: str) -> None:
        if self._stop.is_set():
            guest.close()
            return  # it is this worker that breaks off
        host = name.rpartition(":")[0]
        with self._lock:
            self.refused += 1
            self.last_refusal = f"{name}: {reason}"
            news = (host, reason) not in self._logged and len(self._logged) < _MAX_LOGGED
            if news:
                self._logged.add((host, reason))
        guest.close()
        if news:  # a scanner knocks a thousand times; once is enough to read
            self._log.warning("refused a connection from %s: %s", name, reason)
