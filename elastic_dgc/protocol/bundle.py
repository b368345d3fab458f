"""Several pieces of bytes in one letter: state together with the log that leads on from it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Payload

_COUNT, _SIZE = struct.Struct("<I"), struct.Struct("<Q")


def bundle(parts: Sequence[Payload]) -> bytes:
    """Parts one after the other, with their sizes before them."""
    return b"".join((_COUNT.pack(len(parts)), *(_SIZE.pack(len(part)) for part in parts), *parts))


def unbundle(data: Payload) -> list[bytes]:
    """The inverse. Raises `MessageError` where sizes and bytes do not fit."""
    view = memoryview(data)
    if len(view) < _COUNT.size:
        raise MessageError(f"a bundle of {len(view)} bytes is damaged")
    (count,) = _COUNT.unpack_from(view)
    start = _COUNT.size + count * _SIZE.size
    if len(view) < start:
        raise MessageError(f"a bundle of {count} parts in {len(view)} bytes is damaged")
    sizes = [size for (size,) in _SIZE.iter_unpack(view[_COUNT.size : start])]
    if start + sum(sizes) != len(view):
        raise MessageError(f"a bundle should have {start + sum(sizes)} bytes, not {len(view)}")
    parts = []
    for size in sizes:
        parts.append(bytes(view[start : start + size]))
        start += size
    return parts
