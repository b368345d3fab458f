"""The mutual proof that two workers belong to the same view of the same run, before anything else is accepted.

Three messages of fixed size, and a fourth that says the third was accepted:

    caller -> host    hello   who calls whom, in which view of which run; a nonce
    host -> caller    answer  a nonce, HMAC(secret, "host" + everything above) -- or why it refuses
    caller -> host    proof   HMAC(secret, "caller" + everything above)
    host -> caller    answer  accepted, or not

HMAC-SHA256 under the run's secret; both nonces, the run, the view and both ranks are bound, so nothing can be replayed
in another place. The traffic that follows is not encrypted: the secret keeps strangers out, not listeners.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from dataclasses import dataclass

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.frame import RUN_BYTES, VERSION
from elastic_dgc.exchange.sockets import read_exactly

_MAGIC = b"eDGH"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_HELLO = struct.Struct(f"!4sB{RUN_BYTES}sQII{_NONCE_BYTES}s")  # magic, version, run, view, caller, host, nonce
_ANSWER = struct.Struct(f"!4sBBQ{_NONCE_BYTES}s{_PROOF_BYTES}s")  # magic, version, verdict, view, nonce, proof

_WELCOME = 0
_OTHER_VERSION = 1
_REFUSALS = {
    _OTHER_VERSION: "it speaks another version",
    2: "it belongs to another run",
    3: "it is of an older view",
    4: "it is of a newer view",
    5: "its rank or ours is not the expected one",
    6: "it does not know this run's secret",
    7: "that rank is connected already",
}
ALREADY_CONNECTED = 7
_NOBODY = b"\0" * _NONCE_BYTES


class Refused(MessageError):
    """The other side is not let in, or does not let us in. The message says why."""


class OtherVersion(Refused):
    """The other side is of another version of this package, and will be: no use in trying again."""

    def __init__(self, theirs: int) -> None:
        super().__init__(
            f"it speaks version {theirs} of the workers' protocol, this worker version {VERSION}: install one version "
            f"of elastic_dgc on all workers"
        )


@dataclass(frozen=True)
class Identity:
    """What both sides must share (run: 16 bytes; view; secret), and the own rank."""

    run: bytes
    view: int
    secret: bytes
    rank: int

    def proof(self, role: bytes, caller: int, host: int, nonces: bytes) -> bytes:
        """HMAC-SHA256, 32 bytes, by which one side shows that it knows the secret."""
        place = struct.pack(f"!{RUN_BYTES}sQII", self.run, self.view, caller, host)
        return hmac.digest(self.secret, b"elastic_dgc handshake 1 " + role + b"\0" + place + nonces, "sha256")


def call(sock: socket.socket, own: Identity, host: int, until: float) -> None:
    """The caller's side. Returns when `host` has proved itself and accepted us.

    Waits until the monotonic time `until`: the host may have bound its port long before it takes part. Raises `Refused`
    with the reason (`OtherVersion` for one that stays), or OSError (TimeoutError and ConnectionError among them).
    """
    nonce = os.urandom(_NONCE_BYTES)
    sock.sendall(_HELLO.pack(_MAGIC, VERSION, own.run, own.view, own.rank, host, nonce))
    host_nonce, proof = _read_answer(sock, own, until)
    nonces = nonce + host_nonce
    if not hmac.compare_digest(proof, own.proof(b"host", own.rank, host, nonces)):
        raise Refused("what listens there does not know this run's secret")
    sock.settimeout(1.0)  # 32 bytes always fit into an empty buffer
    sock.sendall(own.proof(b"caller", own.rank, host, nonces))
    _read_answer(sock, own, until)


def _read_answer(sock: socket.socket, own: Identity, until: float) -> tuple[bytes, bytes]:
    magic, version, verdict, view, nonce, proof = _ANSWER.unpack(read_exactly(sock, _ANSWER.size, until))
    if magic != _MAGIC:
        raise Refused("what listens there is not one of our workers")
    if version != VERSION:
        raise OtherVersion(version)
    if verdict != _WELCOME:
        # The text is written from the host's side: what it says of us.
        why = _REFUSALS.get(verdict, f"reason {verdict}")
        raise Refused(f"it refuses this worker: '{why}' (it is in view {view}, we in {own.view})")
    return nonce, proof


def receive(sock: socket.socket, own: Identity, size: int, until: float) -> int:
    """The host's side, up to the caller's proof; returns the caller's rank. `accept` or `refuse` is to follow.

    Raises `Refused` for a stranger, another run or view, or a rank that has no business calling (callers are the ranks
    above our own), after telling it why where it speaks our language; OSError if it breaks off or is too slow.
    """
    # The magic comes alone, so that whoever speaks another protocol need not be waited for.
    if (magic := read_exactly(sock, len(_MAGIC), until)) != _MAGIC:
        raise Refused("not one of our workers")
    hello = _HELLO.unpack(magic + read_exactly(sock, _HELLO.size - len(_MAGIC), until))
    _, version, run, view, rank, host, nonce = hello
    if version != VERSION:
        refuse(sock, own, _OTHER_VERSION)
        raise OtherVersion(version)
    if run != own.run:
        raise refuse(sock, own, 2)
    if view != own.view:
        raise refuse(sock, own, 3 if view < own.view else 4)
    if host != own.rank or not own.rank < rank < size:
        raise refuse(sock, own, 5)
    own_nonce = os.urandom(_NONCE_BYTES)
    nonces = nonce + own_nonce
    proof = own.proof(b"host", rank, own.rank, nonces)
    sock.sendall(_ANSWER.pack(_MAGIC, VERSION, _WELCOME, own.view, own_nonce, proof))
    theirs = read_exactly(sock, _PROOF_BYTES, until)
    if not hmac.compare_digest(theirs, own.proof(b"caller", rank, own.rank, nonces)):
        raise refuse(sock, own, 6)
    return rank


def accept(sock: socket.socket, own: Identity) -> None:
    """Tell a caller that it is in. Raises OSError."""
    sock.sendall(_ANSWER.pack(_MAGIC, VERSION, _WELCOME, own.view, _NOBODY, _NOBODY))


def refuse(sock: socket.socket, own: Identity, verdict: int) -> Refused:
    """Tell a caller why not, and return the exception to raise. Raises OSError."""
    sock.sendall(_ANSWER.pack(_MAGIC, VERSION, verdict, own.view, _NOBODY, _NOBODY))
    return Refused(_REFUSALS[verdict])


def refusal(verdict: int) -> str:
    """A verdict in words."""
    return _REFUSALS[verdict]
