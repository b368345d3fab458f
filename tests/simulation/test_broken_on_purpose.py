"""Each rule of the protocol is switched off, one at a time: a scenario of the matrix finds it, by an oracle that says
so."""

from __future__ import annotations

from collections.abc import Callable

import broken_rules as broken
import pytest

from elastic_dgc.simulation.matrix.all import matrix
from elastic_dgc.simulation.reference import reference
from elastic_dgc.simulation.scenario import play

# The rule, the row and column of the table in which it is missed, and what the oracle says then.
CASES: list[tuple[Callable[[pytest.MonkeyPatch], None], str, str, str]] = [
    (broken.write_in_place, "doze", "vote", "shared state differs after attempt 0"),
    (broken.flip_before_apply, "crash", "exchange", "owned state differs at the end"),
    (broken.free_the_log_early, "drop", "sum", "was promised and refused"),
    (broken.replace_copies_early, "node of one that is ahead", "copy", "an inexact copy was taken"),
    (broken.no_flush, "drop", "exchange", "did not bring MESSAGE"),
    (broken.no_fence, "sent in the view before", "vote", "took in a frame of view 1 at"),
    (broken.no_fence_at_keepers, "sent in the view before", "exchange", "took in a copy of view"),
    (broken.install_unacknowledged, "drop in a change", "flush", "begins view 2 at 4, not at 5"),
    (broken.announce_before_persisting, "coordinator after a crash", "action", "which nobody wrote down"),
    (broken.sent_is_not_zeroed, "node, fast", "vote", "was sent, and is there again"),
    (broken.copies_that_are_too_new, "node of one that is ahead", "copy", "has tag 5, not within"),
    (broken.served_while_alive, "stuck", "exchange", "gave away memory that w1 works in"),
]


@pytest.mark.parametrize(("rule", "row", "column", "text"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_rule_that_is_broken_is_missed(
    rule: Callable[[pytest.MonkeyPatch], None], row: str, column: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios = [one for one in matrix() if (one.row, one.column) == (row, column)]
    for scenario in scenarios:
        reference(scenario.setting.recipe)  # of the protocol as it is
    rule(monkeypatch)
    for scenario in scenarios:
        if any(text in found for found in play(scenario).wrong):
            return
    pytest.fail(f"{len(scenarios)} scenarios of '{row}' at '{column}' do not miss it")
