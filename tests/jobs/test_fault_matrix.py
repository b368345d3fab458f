"""jobs/fault_matrix.py: one scenario told from start to end, tables of several, and an exit code for scripts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from click.testing import CliRunner

from elastic_dgc.simulation import campaign
from elastic_dgc.simulation.matrix.all import matrix
from elastic_dgc.simulation.scenario import Verdict
from elastic_dgc.simulation.tables import tables


def test_one_scenario_is_told(script: Any) -> None:
    name = next(one.name for one in matrix() if (one.row, one.column) == ("crash", "exchange"))
    ran = CliRunner().invoke(script.main, ["--only", name])
    assert ran.exit_code == 0, ran.output
    for text in (f"{name}: to be equal", "fault: crash when worker", "is lost in exchange", ": done", ": crashed"):
        assert text in ran.output


def test_a_name_that_is_none_is_told_with_one_that_is(script: Any) -> None:
    ran = CliRunner().invoke(script.main, ["--only", "tea"])
    assert ran.exit_code == 2
    assert "no scenario is named 'tea'; one is '" in ran.output


def test_what_is_not_as_it_was_to_be_is_told_with_its_command(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    play = campaign.play

    def wrong(scenario: campaign.Scenario) -> Verdict:
        found = play(scenario)
        return dataclasses.replace(found, wrong=("the tea is cold",)) if scenario.name == "seed-8" else found

    monkeypatch.setattr(campaign, "play", wrong)
    ran = CliRunner().invoke(script.main, ["--seed", "7", "--random", "2", "--processes", "1"])
    assert ran.exit_code == 1
    assert "not as it was to be: python jobs/fault_matrix.py --seed 8 --random 1\n    the tea is cold" in ran.output


def test_tables_count_by_fault_and_point() -> None:
    def verdict(row: str, column: str, *wrong: str) -> Verdict:
        return Verdict("", row, column, "equal", wrong, True, 1, 1, 0.0)

    verdicts = [
        verdict("crash", "vote"), verdict("crash", "vote", "no"), verdict("crash", "exchange"),
        verdict("node", "exchange"), verdict("node", "flush"), verdict("random", "2 faults"),
    ]  # fmt: skip
    attempt, change, anywhere = tables(verdicts, markdown=True).split("\n\n")
    assert attempt.splitlines()[0] == "| in an attempt, or at a boundary | vote | exchange | all |"
    assert attempt.splitlines()[2:] == ["| crash | 1/2 | 1/1 | 2/3 |", "| node |  | 1/1 | 1/1 |"]
    assert change.splitlines()[2:] == ["| node | 1/1 | 1/1 |"]
    assert anywhere.splitlines()[2:] == ["| random | 1/1 | 1/1 |"]
