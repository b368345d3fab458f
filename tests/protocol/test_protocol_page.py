"""The page on the protocol tells what the code does: its table of limits."""

from __future__ import annotations

from pathlib import Path

from elastic_dgc.membership.limits import Limits, table

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_every_limit_stands_in_the_page_with_its_default() -> None:
    lines = PAGE.read_text().splitlines()
    told = [line for line in lines if line.startswith("| `") and "_s` |" in line]
    here = [f"| `{one['limit']}` | {one['default']:g} | {one['waits']} | {one['then']} |" for one in table()]
    assert told == here


def test_every_phase_of_a_worker_has_a_limit() -> None:
    limits = Limits()
    phases = ("forward", "vote", "exchange", "evaluation", "digest", "checkpoint", "boundary", "flush", "rehost")
    assert all(limits.of_phase(phase) > 0 for phase in phases)
