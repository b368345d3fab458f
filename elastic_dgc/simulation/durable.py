"""Durable checkpoints of a simulated run, in memory: parts first, then the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from elastic_dgc.errors import DamagedCheckpoint
from elastic_dgc.protocol.program import Durable


class MemoryDurable(Durable):
    """`written`: (view, attempt) of the complete ones, in order. `told` is called with each that becomes complete."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], dict[str, bytes]] = {}
        self.written: list[tuple[int, int]] = []
        self.told: Callable[[int, int], None] = lambda view, attempt: None

    def write(self, view: int, attempt: int, name: str, data: bytes) -> None:
        self._parts.setdefault((view, attempt), {})[name] = data

    def commit(self, view: int, attempt: int, names: Iterable[str]) -> None:
        """The manifest. Raises `DamagedCheckpoint` where a part is missing."""
        missing = set(names) - self._parts.get((view, attempt), {}).keys()
        if missing:
            raise DamagedCheckpoint(f"checkpoint of view {view}, attempt {attempt} lacks {sorted(missing)}")
        if (view, attempt) not in self.written:
            self.written.append((view, attempt))
        self.told(view, attempt)

    def parts(self, view: int, attempt: int) -> Mapping[str, bytes]:
        """What was written of one."""
        return self._parts[(view, attempt)]

    def damage(self, name: str) -> None:
        """A part of all checkpoints so far is read back as garbage from now on."""
        for parts in self._parts.values():
            if name in parts:
                parts[name] = b"garbage"

    def newest(self, not_above: int | None = None) -> int | None:
        return max((a for _, a in self.written if not_above is None or a <= not_above), default=None)

    def shared(self, decided: int) -> bytes:
        return self._part(decided, "shared")

    def owned(self, decided: int, virtual_worker: int) -> bytes:
        return self._part(decided, f"owned-{virtual_worker}")

    def _part(self, decided: int, name: str) -> bytes:
        fit = [one for one in self.written if one[1] == decided]
        if not fit:
            raise DamagedCheckpoint(f"there is no checkpoint of {decided} attempts")
        part = self._parts[max(fit)][name]
        if part == b"garbage":
            raise DamagedCheckpoint(f"{name} of the checkpoint of {decided} attempts: its checksum does not fit")
        return part
