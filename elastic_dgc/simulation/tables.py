"""What came of a campaign, as tables: rows are faults, columns the points at which they struck."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from elastic_dgc.simulation.faults import CHANGE, POINTS
from elastic_dgc.simulation.scenario import Verdict

IN_A_CHANGE = (*CHANGE, "action")
PARTS = {
    "in an attempt, or at a boundary": tuple(one for one in POINTS if one not in IN_A_CHANGE),
    "in a change of view": IN_A_CHANGE,
}


def tables(verdicts: Sequence[Verdict], markdown: bool) -> str:
    """'good/all' in each cell: scenarios that went as they were to, of how many. A column is there if anything
    struck there; columns that are no points (of random schedules) have a table of their own."""
    found = _counts(verdicts)
    here = {column for row in found.values() for column in row}
    parts = {title: [one for one in columns if one in here] for title, columns in PARTS.items()}
    if rest := sorted(here - POINTS.keys()):
        parts["anywhere"] = rest
    made = (_table(title, columns, found, markdown) for title, columns in parts.items() if columns)
    return "\n\n".join(made)


def _counts(verdicts: Sequence[Verdict]) -> dict[str, dict[str, tuple[int, int]]]:
    """By row and column: (as it was to be, all)."""
    found: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for one in verdicts:
        good, all_of_them = found[one.row].get(one.column, (0, 0))
        found[one.row][one.column] = (good + (not one.wrong), all_of_them + 1)
    return dict(found)


def _table(
    title: str, columns: Sequence[str], found: dict[str, dict[str, tuple[int, int]]], markdown: bool
) -> str:  # fmt: skip
    lines = [[title, *columns, "all"], *_rows(columns, found)]
    if markdown:
        head, *rest = ["| " + " | ".join(line) + " |" for line in lines]
        return "\n".join([head, "|---|" + "---:|" * (len(columns) + 1), *rest])
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:], strict=True))])
        for first, *cells in lines
    )


def _rows(columns: Sequence[str], found: dict[str, dict[str, tuple[int, int]]]) -> Iterator[list[str]]:
    for name, row in found.items():
        cells = [row[one] for one in columns if one in row]
        if cells:
            total = (sum(good for good, _ in cells), sum(count for _, count in cells))
            shown = [row.get(one) for one in columns] + [total]
            yield [name, *("" if cell is None else f"{cell[0]}/{cell[1]}" for cell in shown)]
