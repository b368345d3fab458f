"""Corrupt samples that a source leaves out: counted as distinct rows, so that neither the number of workers nor a
restart changes the number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from elastic_dgc.data.source import Source
from elastic_dgc.log import logger
from elastic_dgc.trainer.group import Group


class CorruptSamples:
    """What one worker met, by split, in the attempts and evaluations that counted; `earlier` is what the checkpoint
    tells of everyone's."""

    def __init__(self, group: Group, sources: Mapping[str, Source | None], earlier: Mapping[str, list[int]]) -> None:
        self._group, self._sources = group, sources
        self._rows: dict[str, set[int]] = {split: set(earlier.get(split, ())) for split in sources}

    def note(self, split: str, left_out: Iterable[int]) -> None:
        """Rows that a batch lacks. Those that are left out for another reason (a batch of one) do not count. The first
        one that anybody meets is said, with file and row."""
        source = self._sources[split]
        for row in left_out:
            reason = source.corrupt_reason(row) if source is not None else None
            if reason is not None:
                if not any(self._rows.values()):
                    logger(worker=self._group.members.rank).warning(
                        "corrupt sample left out, more will only be counted: %s", reason, extra={"once": "corrupt"}
                    )
                self._rows[split].add(row)

    def everyone(self) -> dict[str, list[int]]:
        """All workers' rows by split, sorted. Entered by all alike."""
        told = self._group.gather({split: sorted(rows) for split, rows in self._rows.items()}, "corrupt samples")
        return {split: sorted({row for one in told for row in one[split]}) for split in self._rows}


def count_of(rows: Mapping[str, Any]) -> int:
    """Distinct corrupt samples in what `everyone` gave."""
    return sum(len(one) for one in rows.values())
