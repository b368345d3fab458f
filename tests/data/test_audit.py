"""The audit proves the multiset through restarts, and every planted fault is found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_dgc.data.audit import AuditWriter, assemble, header, verify
from elastic_dgc.data.order import Order
from elastic_dgc.errors import DataError

ORDER = Order([5, 9, 6], 3, 2, seed=4)  # 20 samples, 4 steps an epoch, the last one short
HEAD = header(ORDER, "abc")


def segment(view: int, first: int, end: int, order: Order = ORDER, skips: Any = ()) -> str:
    writer = AuditWriter(view)
    for attempt in range(first, end):
        for k in range(order.virtual_workers):
            outcome = "skip" if attempt in skips else "commit"
            writer.add(attempt, order.epoch_of(attempt), k, outcome, order.rows(attempt, k))  # type: ignore[arg-type]
    text = writer.take()
    assert writer.take() == ""
    return text


def lines(end: int = 10) -> list[str]:
    return assemble([segment(1, 0, end)], [(1, 0)], HEAD, end)


def edited(index: int, **values: Any) -> list[str]:
    out = lines()
    out[index] = json.dumps({**json.loads(out[index]), **values})
    return out


def test_an_undisturbed_run_is_proved() -> None:
    result = verify(lines())
    assert result.ok, result.problems
    assert (result.attempts, result.complete_epochs, result.rows, result.samples) == (10, 2, 52, 20)
    assert "each exactly once" in result.summary()


@settings(deadline=None)
@given(data=st.data())
def test_a_run_through_restarts_is_proved_and_equals_the_undisturbed_one(data: st.DataObject) -> None:
    order = Order(data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=5)), 3, 2, seed=4)
    end = data.draw(st.integers(1, 3 * order.steps_per_epoch))
    history, segments, reached = [(1, 0)], [], 0
    for view in range(1, data.draw(st.integers(1, 5)) + 1):
        first = history[-1][1]
        reached = max(first, data.draw(st.integers(first, end)))
        segments.append(segment(view, first, reached, order))
        history.append((view + 1, data.draw(st.integers(0, reached))))  # an old checkpoint, even one from before
    segments.append(segment(history[-1][0], history[-1][1], end + 2, order))
    got = assemble(reversed(segments), history, header(order, "abc"), end)
    assert verify(got).ok, verify(got).problems
    plain = assemble([segment(1, 0, end, order)], [(1, 0)], header(order, "abc"), end)
    assert [{**json.loads(line), "view": 0} for line in got] == [{**json.loads(line), "view": 0} for line in plain]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: lines()[:5] + lines()[6:], "attempt 1 lacks the virtual workers 1"),
        (lambda: lines()[:4] + lines()[7:], "attempt 1 is missing"),
        (lambda: lines()[:-1], "attempt 9 lacks the virtual workers 2"),
        (lambda: lines()[:-3], "attempt 9 is missing"),
        (lambda: lines()[:-3] + lines(11)[-3:], "attempt 10, virtual worker 0 is beyond the 10 attempts"),
        (lambda: lines() + lines()[-1:], "attempt 9, virtual worker 2 is there twice"),
        (lambda: edited(3, rows=[]), "epoch 0 never used 2 samples"),
        (lambda: edited(3, rows=json.loads(lines()[2])["rows"]), "epoch 0 used 2 samples more than once"),
        (lambda: edited(28, rows=json.loads(lines()[27])["rows"]), "epoch 2 used 2 samples more than once"),
        (lambda: edited(3, rows=[20]), "rows that do not exist: 20"),
        (lambda: edited(3, rows=[-1]), "rows that do not exist: -1"),
        (lambda: edited(3, epoch=1), "attempt 0, virtual worker 2 names epoch 1"),
        (lambda: edited(3, virtual_worker=3), "there are 3 virtual workers"),
        (lambda: edited(3, outcome="skip"), "a commit for some virtual workers and a skip for others"),
    ],
)
def test_a_planted_fault_is_found(make: Any, problem: str) -> None:
    result = verify(make())
    assert not result.ok
    assert any(problem in text for text in result.problems), result.problems


def test_skipped_and_left_out_samples_are_named_not_lost() -> None:
    text = segment(1, 0, 8, skips=(2,))
    first, *rest = text.splitlines(keepends=True)
    writer = AuditWriter(1)
    writer.add(0, 0, 0, "commit", ORDER.rows(0, 0), left_out=ORDER.rows(0, 0)[:1])
    result = verify(assemble([writer.take() + "".join(rest)], [(1, 0)], HEAD, 8))
    assert result.ok
    assert {a: sorted(rows) for a, rows in result.skipped_rows.items()} == {
        2: sorted(row for k in range(3) for row in ORDER.rows(2, k).tolist())
    }
    assert result.left_out_rows == {0: ORDER.rows(0, 0)[:1].tolist()}
    assert "6 of them in skipped attempts, 1 corrupt" in result.summary()
    assert json.loads(first)["outcome"] == "commit"


def test_no_lines_at_all_prove_nothing_used() -> None:
    result = verify(assemble([], [(1, 0)], HEAD, 0))
    assert (result.ok, result.attempts, result.rows) == (True, 0, 0)


@pytest.mark.parametrize("text", ['{"view": 1', "[]", '{"view":1,"attempt":0}', "null"])
def test_what_is_no_audit_line_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="audit segment 0, line 31 is no line of an audit"):
        assemble([segment(1, 0, 10) + text], [(1, 0)], HEAD, 10)
    with pytest.raises(DataError, match="audit line 2"):
        verify([lines()[0], text])
    with pytest.raises(DataError, match="header"):
        verify([text])


def test_another_format_is_refused() -> None:
    with pytest.raises(DataError, match="format 2"):
        verify([json.dumps({**HEAD, "format": 2})])
