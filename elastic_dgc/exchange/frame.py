"""The frame on the wire: a fixed header with two checksums, then the payload.

The header says whose bytes these are (run, view, sender), what they are (the key) and how many, so that a receiver
can refuse them before it reads or stores anything. Payloads are never copied here: header and payload travel as two
buffers of one `sendmsg`. The checksums are CRC-32: they find damage, not forgery; strangers are kept out by the
handshake.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Key, Kind, Payload

MAGIC = b"eDGC"
VERSION = 1
RUN_BYTES = 16
MAX_PAYLOAD_BYTES = 8 * 2**30

# magic, version, run, view, kind, attempt, virtual worker, part, sender, payload length, payload CRC
_BODY = struct.Struct("!4sB16sQBqiiIQI")
_CRC = struct.Struct("!I")
HEADER_BYTES = _BODY.size + _CRC.size


@dataclass(frozen=True)
class Header:
    """A parsed header: its own checksum is right, its payload is still to be read (`length` bytes) and checked."""

    run: bytes
    view: int
    key: Key
    sender: int
    length: int
    checksum: int


def checksum(payload: Payload, start: int = 0) -> int:
    """CRC-32 of a payload, or of its continuation when `start` is the checksum of what came before."""
    return zlib.crc32(payload, start)


def pack_header(run: bytes, view: int, key: Key, sender: int, length: int, payload_checksum: int) -> bytes:
    """The HEADER_BYTES that go before a payload of `length` bytes.

    Raises `MessageError` for a payload over MAX_PAYLOAD_BYTES or a field that does not fit its place.
    """
    if len(run) != RUN_BYTES:
        raise MessageError(f"the run's identity has {len(run)} bytes, it must have {RUN_BYTES}")
    if length > MAX_PAYLOAD_BYTES:
        raise MessageError(
            f"{key}: payload of {length} bytes is over the limit of {MAX_PAYLOAD_BYTES}; send it in parts"
        )
    try:
        body = _BODY.pack(
            *(MAGIC, VERSION, run, view, key.kind, key.attempt, key.virtual_worker, key.part),
            *(sender, length, payload_checksum),
        )
    except struct.error as error:
        raise MessageError(f"{key} from rank {sender} in view {view} does not fit a frame: {error}") from None
    return body + _CRC.pack(zlib.crc32(body))


def parse_header(data: Payload) -> Header:
    """The header in exactly HEADER_BYTES bytes. Raises `MessageError` that says what is wrong with them."""
    if len(data) != HEADER_BYTES:
        raise MessageError(f"a frame's header has {HEADER_BYTES} bytes, {len(data)} arrived: it was cut off")
    magic, version, run, view, kind, attempt, worker, part, sender, length, payload_checksum = _BODY.unpack_from(data)
    if magic != MAGIC:
        raise MessageError(
            f"a frame begins with {magic!r} instead of {MAGIC!r}: not one of our peers, or bytes were lost"
        )
    if version != VERSION:
        raise MessageError(f"frame version {version}, this worker speaks {VERSION}: install one version on all workers")
    if _CRC.unpack_from(data, _BODY.size)[0] != zlib.crc32(memoryview(data)[: _BODY.size]):
        raise MessageError("the checksum of a frame's header is wrong: the bytes were damaged on the way")
    if kind not in _KINDS:
        raise MessageError(f"frame of unknown kind {kind}; known: {', '.join(f'{k.value} {k.name}' for k in Kind)}")
    if length > MAX_PAYLOAD_BYTES:
        raise MessageError(f"a frame announces {length} bytes, the limit is {MAX_PAYLOAD_BYTES}")
    return Header(run, view, Key(Kind(kind), attempt, worker, part), sender, length, payload_checksum)


_KINDS = frozenset(kind.value for kind in Kind)


def check_payload(header: Header, length: int, payload_checksum: int) -> None:
    """Compare what arrived with what the header announced. Raises `MessageError`."""
    if length != header.length:
        raise MessageError(f"{header.key} was cut off: {length} of {header.length} bytes arrived")
    if payload_checksum != header.checksum:
        raise MessageError(
            f"the checksum of {header.key} from rank {header.sender} is wrong: the bytes were damaged on the way, "
            "or the sender changed them before they were sent"
        )
