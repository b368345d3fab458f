"""The audit: lines of which rows were used, and the proof that each sample was used exactly once per epoch.

One JSON object per line: a header, then one line per (attempt, virtual worker). Every view writes what it decided;
after a restart attempts are decided again, so only the lines of the view that owns an attempt in the run's final
history count. Pure functions on text: storage is the trainer's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from elastic_dgc.data.order import Order
from elastic_dgc.errors import DataError

FORMAT = 1
Outcome = Literal["commit", "skip"]
_SHOWN = 5  # rows named in one problem


def header(order: Order, fingerprint: str) -> dict[str, Any]:
    """What the lines of a run are checked against."""
    return {
        "format": FORMAT,
        "samples": order.samples,
        "steps_per_epoch": order.steps_per_epoch,
        "virtual_workers": order.virtual_workers,
        "seed": order.seed,
        "fingerprint": fingerprint,
    }


class AuditWriter:
    """Collects the lines of one view in memory. Called by the trainer once an attempt's outcome is decided."""

    def __init__(self, view: int) -> None:
        self.view = view
        self._lines: list[str] = []

    def add(
        self,
        attempt: int,
        epoch: int,
        virtual_worker: int,
        outcome: Outcome,
        rows: Sequence[int] | npt.NDArray[np.int64],
        left_out: Sequence[int] | npt.NDArray[np.int64] = (),
    ) -> None:
        """Note what a hosted virtual worker used (its rows, none too). `left_out` are those of them whose images
        were corrupt."""
        line = {
            "view": self.view,
            "attempt": attempt,
            "epoch": epoch,
            "virtual_worker": virtual_worker,
            "outcome": outcome,
            "rows": np.asarray(rows, dtype=np.int64).tolist(),
        }
        if len(left_out):
            line["left_out"] = np.asarray(left_out, dtype=np.int64).tolist()
        self._lines.append(json.dumps(line, separators=(",", ":")))

    def take(self) -> str:
        """The lines since the last call, as the text of a segment; they are forgotten here."""
        text = "".join(line + "\n" for line in self._lines)
        self._lines = []
        return text


def assemble(
    segments: Iterable[str], history: Sequence[tuple[int, int]], header: dict[str, Any], until_attempt: int
) -> list[str]:
    """The lines of a run: its header with the number of attempts, then one line per attempt below `until_attempt` and
    virtual worker, in this order.

    `history` lists (view, first attempt) in the order of views. A view owns the attempts from its first until the
    first attempt of any later view; lines of others are of a past that was repeated, and are dropped. Nothing else
    is: what is double or missing stays visible to `verify`. Raises `DataError` for a line that is not of the audit.
    """
    owned: dict[int, tuple[int, int]] = {}
    end = until_attempt
    for view, first in reversed(history):
        owned[view] = first, end
        end = min(end, first)
    kept: list[tuple[int, int, str]] = []
    for number, segment in enumerate(segments):
        for place, text in enumerate(segment.splitlines(), start=1):
            line = _parse(text, f"audit segment {number}, line {place}")
            first, end = owned.get(line["view"], (0, 0))
            if first <= line["attempt"] < end:
                kept.append((line["attempt"], line["virtual_worker"], text))
    kept.sort(key=lambda item: item[:2])
    head = {**header, "attempts": until_attempt}
    return [json.dumps(head, separators=(",", ":")), *(text for _, _, text in kept)]


@dataclass
class AuditResult:
    """What the lines prove. `ok` means: every complete epoch used each sample exactly once, the last one at most
    once, no attempt is missing or double; skipped and left-out samples are among the used ones and named here."""

    samples: int = 0
    attempts: int = 0
    complete_epochs: int = 0
    rows: int = 0  # in all lines
    skipped_rows: dict[int, list[int]] = field(default_factory=dict)  # attempt -> rows that were consumed unused
    left_out_rows: dict[int, list[int]] = field(default_factory=dict)  # epoch -> rows of corrupt images
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def summary(self) -> str:
        """One line for people."""
        skipped = sum(map(len, self.skipped_rows.values()))
        left_out = sum(map(len, self.left_out_rows.values()))
        found = f"{len(self.problems)} problems: {'; '.join(self.problems)}" if self.problems else "each exactly once"
        return (
            f"{self.attempts} attempts, {self.complete_epochs} complete epochs of {self.samples} samples, "
            f"{self.rows} rows used, {skipped} of them in skipped attempts, {left_out} corrupt: {found}"
        )


def verify(lines: Iterable[str]) -> AuditResult:
    """Check the lines of a run, as `assemble` gives them. Raises `DataError` where they cannot be read at all."""
    texts = iter(lines)
    head = _parse_header(next(texts, ""))
    samples, steps, virtual_workers = head["samples"], head["steps_per_epoch"], head["virtual_workers"]
    result = AuditResult(samples)
    seen: dict[int, dict[int, str]] = {}  # attempt -> virtual worker -> outcome
    used: dict[int, npt.NDArray[np.int64]] = {}  # epoch -> times each row was used
    for place, text in enumerate(texts, start=2):
        line = _parse(text, f"audit line {place}")
        attempt, k, rows = line["attempt"], line["virtual_worker"], np.array(line["rows"], dtype=np.int64)
        where = f"attempt {attempt}, virtual worker {k}"
        result.rows += len(rows)
        if k in seen.setdefault(attempt, {}):
            result.problems.append(f"{where} is there twice")
        seen[attempt][k] = line["outcome"]
        if line["epoch"] != attempt // steps:
            result.problems.append(f"{where} names epoch {line['epoch']}, it is of epoch {attempt // steps}")
        if attempt >= head["attempts"]:
            result.problems.append(f"{where} is beyond the {head['attempts']} attempts of the run")
        if not 0 <= k < virtual_workers:
            result.problems.append(f"{where}: there are {virtual_workers} virtual workers")
        outside = rows[(rows < 0) | (rows >= samples)]
        if len(outside):
            result.problems.append(f"{where} has rows that do not exist: {_named(outside)}")
        inside = rows[(rows >= 0) & (rows < samples)]
        used.setdefault(attempt // steps, np.zeros(samples, dtype=np.int64))
        np.add.at(used[attempt // steps], inside, 1)
        if line["outcome"] == "skip":
            result.skipped_rows.setdefault(attempt, []).extend(rows.tolist())
        elif "left_out" in line:
            result.left_out_rows.setdefault(attempt // steps, []).extend(line["left_out"])
    result.attempts = head["attempts"]
    result.complete_epochs = result.attempts // steps
    _check_attempts(result, seen, virtual_workers)
    for epoch in range(-(-result.attempts // steps)):
        times = used.get(epoch, np.zeros(samples, dtype=np.int64))
        twice = np.flatnonzero(times > 1)
        never = np.flatnonzero(times == 0)
        if len(twice):
            result.problems.append(f"epoch {epoch} used {len(twice)} samples more than once: {_named(twice)}")
        if epoch < result.complete_epochs and len(never):
            result.problems.append(f"epoch {epoch} never used {len(never)} samples: {_named(never)}")
    return result


def _check_attempts(result: AuditResult, seen: dict[int, dict[int, str]], virtual_workers: int) -> None:
    for attempt in range(result.attempts):
        there = seen.get(attempt, {})
        missing = [k for k in range(virtual_workers) if k not in there]
        if len(missing) == virtual_workers:
            result.problems.append(f"attempt {attempt} is missing")
        elif missing:
            result.problems.append(f"attempt {attempt} lacks the virtual workers {', '.join(map(str, missing))}")
        if len(set(there.values())) > 1:
            result.problems.append(f"attempt {attempt} is a commit for some virtual workers and a skip for others")


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
        whole = all(isinstance(line[name], int) for name in ("view", "attempt", "epoch", "virtual_worker"))
        rows = [*line["rows"], *line.get("left_out", [])]
        if (
            whole
            and line["attempt"] >= 0
            and line["outcome"] in ("commit", "skip")
            and all(type(r) is int for r in rows)
        ):
            return line
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise DataError(f"{where} is no line of an audit: {text[:80]!r}")


def _parse_header(text: str) -> dict[str, Any]:
    try:
        head = json.loads(text)
        if head["format"] != FORMAT:
            raise DataError(f"the audit has format {head['format']!r}, this version reads format {FORMAT}")
        counts = [head[name] for name in ("samples", "steps_per_epoch", "virtual_workers", "attempts")]
        if all(isinstance(count, int) for count in counts) and min(counts[:3]) > 0:
            return head
    except (ValueError, KeyError, TypeError):
        pass
    raise DataError(f"the audit does not start with its header but with {text[:80]!r}")


def _named(rows: npt.NDArray[np.int64]) -> str:
    return ", ".join(map(str, rows[:_SHOWN].tolist())) + (" ..." if len(rows) > _SHOWN else "")
