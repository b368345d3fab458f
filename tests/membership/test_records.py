"""What the coordinator persists comes back as it was, and amounts to the same state."""

from __future__ import annotations

import json

import pytest

from elastic_dgc.errors import ProtocolError
from elastic_dgc.membership.records import Death, Fenced, Home, Record, Records, Started, from_json, to_json
from elastic_dgc.membership.roster import Source, Tier, View, Worker

VIEWS = (
    View(2, (Worker("a", "x"), Worker("b", "y", 3)), (0, 1), 0, {k: (Source(Tier.INITIAL),) for k in range(2)}),
    View(4, (Worker("a", "x"), Worker("c", "z")), (0, 1), 7, {1: (Source(Tier.BUDDY, "x", 5, rolling=True),)}, stage=1),
    View(6, (Worker("a", "x"),), (0, 0), 9, {1: (Source(Tier.ZERO),)}, ending=True),
)
RECORDS: list[Record] = [
    Started(1), Fenced(1, 2, (), ("a", "b")), VIEWS[0], Death("b", 7, 1), Fenced(1, 3, ("b",)), Started(2),
    Fenced(2, 4, (), ("c",)), VIEWS[1], Death("b", 7, 1), Fenced(2, 5, ("c",), (), ("a",)),
]  # fmt: skip


@pytest.mark.parametrize("record", [*RECORDS, VIEWS[2]], ids=lambda one: type(one).__name__)
def test_a_record_survives_json(record: Record) -> None:
    assert from_json(json.loads(json.dumps(to_json(record)))) == record


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"record": "Tea"},
        {"record": "Started"},
        {"record": "Fenced", "number": 1},
        {**to_json(VIEWS[0]), "hosts": [9]},
    ],
)
def test_what_is_no_record_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="a record of the coordinator"):
        from_json(values)


def test_records_amount_to_a_state() -> None:
    state = Records(RECORDS)
    assert (state.incarnation, state.number, state.view, state.open) == (2, 5, VIEWS[1], RECORDS[-1])
    assert (state.gone, state.fenced_out) == ({"b", "c"}, ("c",))
    assert [one.uid for one in state.survivors] == ["a"]
    assert state.deaths(7, 1) == 1  # one worker dies once
    assert state.home(1) == Home("y", "x")  # c never had it
    assert (state.fits(2, 7), state.fits(2, 8), state.fits(4, 8)) == (True, False, True)
    state.add(View(6, (Worker("d", "x"),), (0, 0), 9))
    assert state.gone == {"a", "b", "c"}  # whoever left comes back only as another
    state.add(VIEWS[2])
    assert (state.open, state.fenced_out, state.home(0)) == (None, (), Home("x", None))
