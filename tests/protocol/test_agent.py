"""What a worker's agent makes of the coordinator's words."""

from __future__ import annotations

from elastic_dgc.membership import control as say
from elastic_dgc.membership.roster import Worker
from elastic_dgc.protocol.agent import Agent


def test_a_newcomer_that_was_lost_before_its_view_was_there_is_out_as_well() -> None:
    agent = Agent(Worker("a", "x"))
    agent.hear("coordinator", say.Plan(1, 3, 0, ()))
    agent.hear("coordinator", say.Out(1, 4))
    assert agent.over == ("out", "view 4 is without this worker")


def test_an_older_incarnation_is_not_heard() -> None:
    agent = Agent(Worker("a", "x"))
    agent.hear("coordinator", say.Poll(2))
    agent.hear("coordinator", say.Out(1, 4))
    assert agent.over is None
