"""Whether compression pays: said once, from what was measured, with both figures."""

from __future__ import annotations

from typing import Any

from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.routes import Link, Speed
from elastic_dgc.step.attempt import Outcome
from elastic_dgc.step.plan import Plan
from elastic_dgc.trainer.pays import STEPS, Pays

PLAN = Plan(0.001, "fp32", False, "", 1000)
NUMEL = 25_000_000


def outcome(plan: Plan = PLAN, committed: bool = True, compress: float = 0.1) -> Outcome:
    nothing: Any = None
    return Outcome(0, nothing, committed, (), 0.1, 1.0, plan, seconds={"compress": compress, "exchange": 0.05})


def said(speed: Speed | None, plans: list[Plan] | None = None) -> list[tuple[bool, str]]:
    members = Members(0, 4, (0, 1, 2, 3), link=Link(speed, None) if speed else None)
    pays = Pays(members, NUMEL, 0.001)
    return [one for one in (pays.add(outcome(plan)) for plan in plans or [PLAN] * 30) if one is not None]


def test_it_pays_on_a_slow_link_and_not_on_a_fast_one() -> None:
    [(yes, line)] = said(Speed(1e-4, 12.5e6))
    assert yes
    assert "150.0 ms a step (all-to-all)" in line
    assert "12.00 s at 100 Mbit/s between nodes" in line  # 3/4 of 100 MB, there and back
    [(yes, line)] = said(Speed(1e-5, 5e9))
    assert not yes
    assert line.startswith("compression does not pay here, going on as configured: ")


def test_it_is_silent_during_the_warm_up_and_without_anybody_to_talk_to() -> None:
    warm = Plan(0.25, "fp32", False, "", 1000)
    whole = Plan(1.0, "fp32", True, "", 1000)
    assert said(Speed(1e-4, 1e7), [warm, whole] * 30) == []
    assert said(Speed(1e-4, 1e7), [PLAN] * (STEPS - 1)) == []
    assert said(None) == []
