"""One authenticated connection to one peer: a thread that receives, a thread that sends, and when it counts as lost.

Receiving never waits for sending nor for the training thread, so two workers can push a hundred megabytes at each
other at the same time. The sender says PING when there is nothing to send, so silence means that the peer is frozen
or cut off, whatever the training threads are doing.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Key, Kind
from elastic_dgc.exchange.frame import HEADER_BYTES, Header, check_payload, checksum, pack_header, parse_header
from elastic_dgc.exchange.mailbox import Mailbox
from elastic_dgc.exchange.sockets import shut
from elastic_dgc.log import logger

PING_INTERVAL_S = 2.0
# Small enough that the checksum finds the bytes still in the processor's cache.
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Stamp:
    """What every frame of one worker in one view carries."""

    run: bytes
    view: int
    rank: int

    def header(self, key: Key, length: int = 0, payload_checksum: int = 0) -> bytes:
        """Packed header of a frame from this worker. Raises `MessageError`, see `frame.pack_header`."""
        return pack_header(self.run, self.view, key, self.rank, length, payload_checksum)


class Connection:
    """Frames to and from one peer. What arrives goes into the mailbox; how it ends is told to the mailbox as well."""

    def __init__(
        self,
        sock: socket.socket,
        peer: int,
        own: Stamp,
        mailbox: Mailbox,
        silence_deadline_s: float,
        count: Callable[[int, int], None],
    ) -> None:
        """Takes the socket over and starts both threads. `count(sent, received)` is called, from either thread, with
        the bytes of pings sent and of whole frames received."""
        self._socket, self._peer, self._own, self._mailbox, self._count = sock, peer, own, mailbox, count
        self._silence_deadline_s = silence_deadline_s
        self._ping_s = min(PING_INTERVAL_S, silence_deadline_s / 4)
        self._queue: deque[tuple[bytes, memoryview]] = deque()
        self._work = threading.Condition()
        self._stopped = False  # nothing more will be sent
        self._leaving = False  # we said goodbye: however the connection ends now is no fault
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Every single wait for the socket to give or take a byte has this limit, in both directions.
        sock.settimeout(silence_deadline_s)
        self._threads = [
            threading.Thread(target=self._receive_all, name=f"dgc-receive-{own.rank}-from-{peer}", daemon=True),
            threading.Thread(target=self._send_all, name=f"dgc-send-{own.rank}-to-{peer}", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, header: bytes, payload: memoryview) -> None:
        """Queue one frame. `payload` is flat bytes and must stay unchanged until it is sent. Dropped once the peer is
        gone: whoever needs something from it is told by the mailbox."""
        with self._work:
            if not self._stopped:
                self._queue.append((header, payload))
                self._work.notify()

    def leave(self) -> None:
        """Send what is queued, then goodbye. Returns at once; `join` waits for it."""
        with self._work:
            self._leaving = True
            self._work.notify()

    def join(self, until: float) -> None:
        """Wait until the peer has read everything, at most until the monotonic time `until`; then close the socket."""
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        shut(self._socket)
        self._stop()
        for thread in self._threads:
            thread.join(1.0)
        self._socket.close()

    # ---- sending

    def _stop(self) -> None:
        with self._work:
            self._stopped = True
            self._queue.clear()
            self._work.notify()

    def _send_all(self) -> None:
        try:
            while (frame := self._next()) is not None:
                self._send(*frame)
        except TimeoutError:
            self._lose(f"it accepted no data for {self._silence_deadline_s:g} s: it is frozen or cut off")
        except OSError:
            pass  # the connection has ended: the receiver finds out how, after it has read what is still to be read
        finally:
            self._stop()
            # Tells the peer that nothing more comes. It has then read all there is, and can close without a reset.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def _next(self) -> tuple[bytes, memoryview] | None:
        """The next frame, a ping when there was nothing to send for a while, the goodbye, and at last None."""
        with self._work:
            if not (self._queue or self._stopped or self._leaving):
                self._work.wait(self._ping_s)
            if self._stopped:
                return None
            if self._queue:
                return self._queue.popleft()
            kind = Kind.BYE if self._leaving else Kind.PING
            self._stopped = self._leaving
        header = self._own.header(Key(kind, 0, 0))
        self._count(len(header), 0)
        return header, memoryview(b"")

    def _send(self, header: bytes, payload: memoryview) -> None:
        sent = 0
        head = memoryview(header)
        total = len(head) + len(payload)
        while sent < total:
            rest = [head[sent:], payload] if sent < len(head) else [payload[sent - len(head) :]]
            sent += self._socket.sendmsg(rest)
            if self._stopped and not self._leaving:
                return  # the peer has said goodbye and reads no more

    # ---- receiving

    def _receive_all(self) -> None:
        reason = "this worker's receiver failed, see its log"
        orderly = False
        try:
            while not orderly:
                header = self._receive_header()
                if header is None:
                    reason = "its connection ended: the process died or was killed, see that worker's log"
                    break
                payload = self._receive_payload(header)
                self._count(0, HEADER_BYTES + header.length)
                if header.key.kind is Kind.BYE:
                    orderly = True
                    reason = "it ended its part and left, after an error of its own or because it was done; see its log"
                elif header.key.kind is not Kind.PING:
                    self._mailbox.put(self._peer, header.key, payload)
        except TimeoutError:
            reason = (
                f"it was silent for {self._silence_deadline_s:g} s: the process is frozen or the link is cut; "
                "if the link is merely slow, raise the deadline for silence"
            )
        except MessageError as error:
            reason = f"the connection was ended because {error}"
        except MemoryError:
            reason = "this worker has no memory left for what it sent: use fewer virtual workers on this machine"
        except OSError as error:
            reason = f"its connection broke: {error}"
        finally:
            self._lose(reason, orderly=orderly)

    def _receive_header(self) -> Header | None:
        """The next header, or None at the end between two frames."""
        data = memoryview(bytearray(HEADER_BYTES))
        got = 0
        while got < HEADER_BYTES:
            count = self._socket.recv_into(data[got:])
            if count == 0 and got == 0:
                return None
            if count == 0:
                raise ConnectionError("it ended in the middle of a frame; see that worker's log")
            got += count
        header = parse_header(data)
        if header.run != self._own.run or header.view != self._own.view or header.sender != self._peer:
            raise MessageError(f"a frame of view {header.view} from rank {header.sender} came on it")
        return header

    def _receive_payload(self, header: Header) -> memoryview:
        """The payload, read-only, its checksum compared."""
        # Not a bytearray: that would be filled with zeros first.
        data = np.empty(header.length, dtype=np.uint8).data
        got = running = 0
        while got < header.length:
            count = self._socket.recv_into(data[got : got + _CHUNK_BYTES])
            if count == 0:
                raise ConnectionError("it ended in the middle of a frame; see that worker's log")
            running = checksum(data[got : got + count], running)
            got += count
        check_payload(header, got, running)
        return data.toreadonly()

    def _lose(self, reason: str, *, orderly: bool = False) -> None:
        first = self._mailbox.lose(self._peer, reason, orderly=orderly)
        if first and not orderly and not self._leaving:
            logger(worker=self._own.rank).warning("lost rank %d: %s", self._peer, reason)
        self._stop()
        if not orderly:  # after a goodbye the sender still ends its direction in peace
            shut(self._socket)
