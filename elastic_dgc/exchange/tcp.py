"""The transport between real processes: a full mesh of TCP connections, one per pair of workers.

The higher rank calls the lower one. Nothing a caller sends is looked at before both sides have proved that they know
the run's secret and are of the same view (see `handshake`). From then on each connection has its own two threads (see
`connection`), and the training thread only queues what it sends and waits for what it wants (see `mailbox`).
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Mapping, Sequence

from elastic_dgc.errors import Disagreement, ElasticDGCError, PeerLost
from elastic_dgc.exchange import handshake
from elastic_dgc.exchange.ask import Key, Kind, Parcel, Payload
from elastic_dgc.exchange.connection import Connection, Stamp
from elastic_dgc.exchange.frame import HEADER_BYTES, RUN_BYTES, checksum
from elastic_dgc.exchange.listener import Acceptor, Listener
from elastic_dgc.exchange.mailbox import Mailbox
from elastic_dgc.exchange.sockets import close_in_children, free_ports, name_of
from elastic_dgc.exchange.transport import Transport

__all__ = ["Listener", "TcpTransport"]

HANDSHAKE_DEADLINE_S = 5.0
CLOSE_DEADLINE_S = 5.0
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0


class TcpTransport(Transport):
    """See `Transport`. `bytes_sent` counts frames when they are handed over, headers and pings too; not handshakes."""

    def __init__(
        self,
        listener: Listener,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        run: bytes,
        view: int,
        secret: bytes,
        *,
        connect_deadline_s: float = 30.0,
        silence_deadline_s: float = 30.0,
    ) -> None:
        """Connect to all other workers of a view; every worker makes its transport at about the same time.

        `addresses` are the listeners' (host, port) by rank; `run` is 16 bytes that name the run; `secret` is what only
        its workers know. The listener is served until `close`, and stays open then. Raises `PeerLost` naming a rank
        that was not there within `connect_deadline_s`, `Disagreement` at once where one is of another version of this
        package, ValueError for arguments that cannot be right.
        """
        if len(run) != RUN_BYTES or not secret or view < 0 or not 0 <= rank < len(addresses):
            raise ValueError(
                f"run of {len(run)} bytes (must be {RUN_BYTES}), secret of {len(secret)} (at least 1), view {view} "
                f"(0 or more), rank {rank} of {len(addresses)}"
            )
        if connect_deadline_s <= 0 or silence_deadline_s <= 0:
            raise ValueError(f"deadlines must be above 0, not {connect_deadline_s} s and {silence_deadline_s} s")
        self.rank, self.size = rank, len(addresses)
        self.bytes_sent = self.bytes_received = 0
        self._addresses = list(addresses)
        self._own = handshake.Identity(run, view, secret, rank)
        self._stamp = Stamp(run, view, rank)
        self._silence_deadline_s = silence_deadline_s
        self._mailbox = Mailbox({peer: self._name(peer) for peer in range(self.size) if peer != rank})
        self._connections: dict[int, Connection] = {}
        self._reasons: dict[int, str] = {}
        self._other_version: Disagreement | None = None
        self._changed = threading.Condition()
        self._count_lock = threading.Lock()
        self._closing = threading.Event()
        self._acceptor = Acceptor(listener, self._admit, rank)
        try:
            self._connect_all(listener, connect_deadline_s)
        except BaseException:
            self.close()
            raise

    @property
    def refused(self) -> int:
        """How many connections were refused so far: strangers, other runs, other views, noise."""
        return self._acceptor.refused

    @property
    def lost(self) -> dict[int, str]:
        """The peers that are gone, each with the reason, whether or not anything is wanted from them."""
        return self._mailbox.gone

    def send(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            if parcel.to == self.rank or not 0 <= parcel.to < self.size:
                raise ValueError(f"rank {self.rank} sends to rank {parcel.to} in a view of {self.size} workers")
            if parcel.key.kind in (Kind.PING, Kind.BYE):
                raise ValueError(f"{parcel.key.kind.name} is the transport's own kind")
        if self._closing.is_set():
            raise ElasticDGCError("the transport is closed: nothing can be sent any more")
        checksums: dict[int, int] = {}  # by identity: usually the same payload goes to everyone
        total = 0
        for parcel in parcels:
            payload = memoryview(parcel.payload).cast("B")
            if id(parcel.payload) not in checksums:
                checksums[id(parcel.payload)] = checksum(payload)
            header = self._stamp.header(parcel.key, len(payload), checksums[id(parcel.payload)])
            total += HEADER_BYTES + len(payload)
            self._connections[parcel.to].send(header, payload)
        self._count(total, 0)

    def collect(self, want: Mapping[Key, int], deadline_s: float, phase: str) -> dict[Key, Payload]:
        return self._mailbox.collect(want, deadline_s, phase)

    def forget(self, before_attempt: int) -> None:
        self._mailbox.forget(before_attempt)

    def close(self) -> None:
        """End all connections and threads, within seconds; what is queued is sent first. May be called twice, and from
        another thread than the training thread's, which then gets an error out of `collect`."""
        with self._changed:
            if self._closing.is_set():
                return
            self._closing.set()
            self._changed.notify_all()
        self._mailbox.fail(ElasticDGCError("the transport was closed while something was still wanted from a peer"))
        until = time.monotonic() + CLOSE_DEADLINE_S
        self._acceptor.stop(until)
        with self._changed:
            connections = list(self._connections.values())
        for connection in connections:
            connection.leave()
        for connection in connections:
            connection.join(until)

    def __enter__(self) -> TcpTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _name(self, peer: int) -> str:
        return f"rank {peer} at {name_of(self._addresses[peer])}"

    def _count(self, sent: int, received: int) -> None:
        with self._count_lock:
            self.bytes_sent += sent
            self.bytes_received += received

    # ---- making the mesh

    def _connect_all(self, listener: Listener, deadline_s: float) -> None:
        until = time.monotonic() + deadline_s
        callers = [
            threading.Thread(target=self._call, args=(peer, until), name=f"dgc-call-{peer}", daemon=True)
            for peer in range(self.rank)
        ]
        for thread in callers:
            thread.start()
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._connections) == self.size - 1 or self._other_version is not None,
                max(0.0, until - time.monotonic()),
            )
            if self._other_version is not None:
                raise self._other_version
            absent = [peer for peer in range(self.size) if peer != self.rank and peer not in self._connections]
            if not absent:
                return
        for thread in callers:
            thread.join(1.0)  # they have the same deadline, and only then the reason
        peer, reason = absent[0], self._reasons.get(absent[0], "it did not answer")
        if peer < self.rank:
            port = self._addresses[peer][1]
            what = f"could not be reached within {deadline_s:g} s: {reason}"
        else:
            port = listener.address[1]
            what = f"did not connect to {name_of(listener.address)} within {deadline_s:g} s"
            if self._acceptor.last_refusal:
                what += f" (refused meanwhile: {self._acceptor.last_refusal})"
        others = f"; missing as well: {', '.join(map(str, absent[1:]))}" if absent[1:] else ""
        raise PeerLost(
            f"{self._name(peer)} {what}; see whether that worker runs, and open TCP between the machines if a firewall "
            f"is in the way: port {port} this time, of those that the system gives out ({free_ports()} here){others}",
            peer,
        )

    def _call(self, peer: int, until: float) -> None:
        """Call a lower rank until it lets us in or time is over: it may start later, or still be in an older view."""
        pause_s = _FIRST_RETRY_S
        while not self._closing.is_set() and (remaining_s := until - time.monotonic()) > 0:
            sock: socket.socket | None = None
            try:
                sock = close_in_children(socket.create_connection(self._addresses[peer], timeout=remaining_s))
                if sock.getsockname() == sock.getpeername():
                    # A free port of this machine may be given to the very socket that calls it: TCP then connects it
                    # to itself.
                    raise ConnectionError("nothing listens there")
                handshake.call(sock, self._own, peer, until)
                if self._join(peer, sock):
                    return
            except handshake.OtherVersion as error:
                # The address came from the group's own start, so this is no stranger whose word might be doubted.
                with self._changed:
                    self._other_version = Disagreement(f"{self._name(peer)}: {error}")
                    self._changed.notify_all()
            except handshake.Refused as error:
                self._reasons[peer] = str(error)
            except OSError as error:
                self._reasons[peer] = _why(error, connected=sock is not None)
            if sock is not None:
                sock.close()
            self._closing.wait(min(pause_s, max(0.0, until - time.monotonic())))
            pause_s = min(2 * pause_s, _LAST_RETRY_S)

    def _admit(self, sock: socket.socket) -> str | None:
        """A higher rank calls (or a stranger does). Returns why it is refused, None if it was let in."""
        until = time.monotonic() + HANDSHAKE_DEADLINE_S
        try:
            peer = handshake.receive(sock, self._own, self.size, until)
            with self._changed:
                connected = peer in self._connections
            if connected:
                raise handshake.refuse(sock, self._own, handshake.ALREADY_CONNECTED)
            handshake.accept(sock, self._own)
        except TimeoutError:
            return f"it did not introduce itself within {HANDSHAKE_DEADLINE_S:g} s"
        except (OSError, handshake.Refused) as error:
            return str(error)
        return None if self._join(peer, sock) else handshake.refusal(handshake.ALREADY_CONNECTED)

    def _join(self, peer: int, sock: socket.socket) -> bool:
        """Make an authenticated socket the connection to a peer; False if there is one, or we are closing."""
        with self._changed:
            if self._closing.is_set() or peer in self._connections:
                return False
            self._connections[peer] = Connection(
                sock, peer, self._stamp, self._mailbox, self._silence_deadline_s, self._count
            )
            self._changed.notify_all()
            return True


def _why(error: OSError, *, connected: bool) -> str:
    """What an attempt to reach a worker failed of, and what that means where the connection itself failed."""
    if connected:
        return str(error)
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return "no answer at all: a firewall drops what is sent there, or the address is wrong"
    if isinstance(error, ConnectionRefusedError):
        return "the machine answers, but nothing listens there: the worker has ended or not begun"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM):
        return f"{(error.strerror or str(error)).lower()}: a firewall rejects it, or there is no route to that network"
    return str(error)
