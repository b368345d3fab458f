"""The log of decided attempts: what a virtual worker's state is replayed from, and what a flush hands on."""

from __future__ import annotations

import struct
import zlib
from collections import deque
from dataclasses import dataclass

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange.ask import Payload

_HEAD = struct.Struct("<4sBBHqI")  # magic, version, committed, reserved, attempt, parts
_PART = struct.Struct("<BQ")  # what it is, bytes
_CRC = struct.Struct("<I")
_MAGIC, _VERSION = b"DGCL", 1
_ROW, _MESSAGE, _TOTAL = range(3)
_COMMITTED = (None, False, True)


@dataclass(frozen=True)
class Entry:
    """What was decided in an attempt. `rows`: all K packed rows. `messages`: all K packed messages of a sparse step,
    `total`: the sum of a whole step (fp32[numel] as bytes); both None where the rows made it a skip.

    `committed`: whether it changed anything. None: not told, for an entry is made before the update is tried; it then
    follows from the rows, and an update that is not finite is refused again by whoever applies it. Raises ValueError
    where these contradict each other.
    """

    attempt: int
    rows: tuple[bytes, ...]
    messages: tuple[bytes, ...] | None = None
    total: bytes | None = None
    committed: bool | None = None

    def __post_init__(self) -> None:
        if self.attempt < 0:
            raise ValueError(f"log entry of attempt {self.attempt}: attempts count from 0")
        if self.messages is not None and len(self.messages) != len(self.rows):
            raise ValueError(f"attempt {self.attempt}: {len(self.messages)} messages beside {len(self.rows)} rows")
        if self.messages is not None and self.total is not None:
            raise ValueError(f"attempt {self.attempt}: messages and a total; a step is sparse or whole")
        if self.committed and not self.has_sum:
            raise ValueError(f"attempt {self.attempt}: committed, with neither messages nor a total")

    @property
    def has_sum(self) -> bool:
        """Whether what was to be applied is there."""
        return self.messages is not None or self.total is not None

    @property
    def size_bytes(self) -> int:
        """What the entry takes packed, and about what it takes in memory."""
        parts = self._parts()
        return _HEAD.size + len(parts) * _PART.size + sum(len(data) for _, data in parts) + _CRC.size

    def pack(self) -> bytes:
        """One piece of bytes with a CRC-32 of all of it at the end."""
        parts = self._parts()
        code = _COMMITTED.index(self.committed)
        head = _HEAD.pack(_MAGIC, _VERSION, code, 0, self.attempt, len(parts))
        sizes = b"".join(_PART.pack(what, len(data)) for what, data in parts)
        packed = b"".join((head, sizes, *(data for _, data in parts)))
        return packed + _CRC.pack(zlib.crc32(packed))

    @staticmethod
    def unpack(data: Payload) -> Entry:
        """The inverse. Raises `MessageError` on anything that `pack` did not make."""
        view = memoryview(data)
        if len(view) < _HEAD.size + _CRC.size or bytes(view[:4]) != _MAGIC:
            raise MessageError(f"not a log entry: {len(view)} bytes that start with {bytes(view[:4])!r}")
        body = view[: -_CRC.size]
        if _CRC.unpack(view[-_CRC.size :])[0] != zlib.crc32(body):
            raise MessageError(f"a log entry of {len(view)} bytes is damaged: its checksum does not fit")
        _, version, code, _, attempt, count = _HEAD.unpack_from(body)
        if version != _VERSION:
            raise MessageError(f"log entry of format {version} where {_VERSION} is known: use one version everywhere")
        sizes_end = _HEAD.size + count * _PART.size
        if sizes_end > len(body) or code >= len(_COMMITTED):
            raise MessageError(f"a log entry of {len(view)} bytes announces {count} parts")
        found: dict[int, list[bytes]] = {_ROW: [], _MESSAGE: [], _TOTAL: []}
        start = sizes_end
        for what, size in _PART.iter_unpack(body[_HEAD.size : sizes_end]):
            if what not in found or start + size > len(body):
                raise MessageError(f"a log entry has a part of kind {what} and {size} bytes that does not fit")
            found[what].append(bytes(body[start : start + size]))
            start += size
        if start != len(body) or len(found[_TOTAL]) > 1:
            raise MessageError(f"a log entry has {len(body) - start} bytes too many, or two totals")
        try:
            return Entry(
                attempt, tuple(found[_ROW]), tuple(found[_MESSAGE]) or None, next(iter(found[_TOTAL]), None),
                _COMMITTED[code],
            )  # fmt: skip
        except ValueError as error:
            raise MessageError(f"a log entry contradicts itself: {error}") from None

    def _parts(self) -> list[tuple[int, bytes]]:
        parts = [(_ROW, row) for row in self.rows]
        parts += [(_MESSAGE, message) for message in self.messages or ()]
        return parts if self.total is None else [*parts, (_TOTAL, self.total)]


class AttemptLog:
    """The last decided attempts without a gap, in memory and within a budget. Every worker has one.

    What no longer fits is dropped from the old end; `covers` then says that a copy of before cannot be replayed. The
    newest entry is always kept, whatever its size: the flush hands it to whoever is behind.
    """

    def __init__(self, budget_bytes: int) -> None:
        if budget_bytes < 0:
            raise ValueError(f"budget_bytes = {budget_bytes}: must be 0 or more")
        self._budget_bytes = budget_bytes
        self._entries: deque[Entry] = deque()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What the entries take."""
        return self._bytes

    @property
    def newest(self) -> Entry | None:
        return self._entries[-1] if self._entries else None

    def add(self, entry: Entry) -> None:
        """Append the attempt that follows the newest; the first may be any. Raises ValueError on another one."""
        newest = self.newest
        if newest is not None and entry.attempt != newest.attempt + 1:
            raise ValueError(f"the log ends with attempt {newest.attempt}: {entry.attempt} does not follow it")
        self._entries.append(entry)
        self._bytes += entry.size_bytes
        while self._bytes > self._budget_bytes and len(self._entries) > 1:
            self._drop()

    def covers(self, low: int, high: int) -> bool:
        """Whether all entries of low <= attempt < high are there: what brings a copy of tag `low` to tag `high`."""
        if low >= high:
            return True
        return bool(self._entries) and self._entries[0].attempt <= low and high <= self._entries[-1].attempt + 1

    def since(self, tag: int) -> tuple[Entry, ...]:
        """The entries of attempts from `tag` on: what brings a copy of this tag up to date. None where the log ends
        before it, or is empty. Raises ValueError where some of them were dropped."""
        if self._entries and tag < self._entries[0].attempt:
            raise ValueError(f"attempts {tag} to {self._entries[0].attempt - 1} are not in the log any more")
        return tuple(entry for entry in self._entries if entry.attempt >= tag)

    def cut(self, from_attempt: int) -> None:
        """Drop the entries of this attempt and of later ones: of a history that did not go on."""
        while self._entries and self._entries[-1].attempt >= from_attempt:
            self._bytes -= self._entries.pop().size_bytes

    def forget(self, before_attempt: int) -> None:
        """Drop the entries of earlier attempts, all but the newest one."""
        while len(self._entries) > 1 and self._entries[0].attempt < before_attempt:
            self._drop()

    def _drop(self) -> None:
        self._bytes -= self._entries.popleft().size_bytes
