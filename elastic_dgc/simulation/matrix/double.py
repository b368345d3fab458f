"""Two faults: the second in the change of view that the first one causes, or both at once."""

from __future__ import annotations

from collections.abc import Iterator

from elastic_dgc.simulation.faults import ANYBODY, CHANGE, Fault
from elastic_dgc.simulation.matrix.variations import ATTEMPT, GROUPS, deal, scenario
from elastic_dgc.simulation.scenario import Scenario

WIDE = [one for one in GROUPS if len(set(one.nodes)) >= 3 and one.virtual_workers >= len(one.nodes)]
NEWCOMER = {"rehost", "replay"}  # points that only a new host comes to: whoever that is


def in_the_change() -> Iterator[Scenario]:
    """A second fault at each point of the change that the first one caused."""
    for first in ("crash", "node"):
        for second in ("crash", "node", "freeze", "drop", "keeper", "coordinator", "all"):
            for point in CHANGE:
                if point == "replay" and first != "node":
                    continue
                lost = {first, second} & {"node", "keeper"}
                twice = first == "node" and second in ("node", "keeper")
                for group, recipe in deal(f"{first}{second}{point}", WIDE, 1):
                    faults = [
                        Fault(first, "exchange", 1, ATTEMPT, 1),
                        Fault(second, point, ANYBODY if point in NEWCOMER else 2, after=1, other=0),
                    ]
                    expected = "unprotected" if twice or (second == "node" and bool(lost)) else "equal"
                    yield scenario(
                        f"{second} in a change", point, group, recipe, faults, note=f"after-{first}", expected=expected,
                        again=second == "all" and first == "node",
                    )  # fmt: skip


def at_once() -> Iterator[Scenario]:
    """Two at the same moment, at every point of an attempt."""
    pairs = {
        "two crashes": ("crash", "crash", "equal"),
        "crash and node": ("crash", "node", "equal"),
        "crash and keeper": ("crash", "keeper", "equal"),
        "crash and coordinator": ("crash", "coordinator", "equal"),
        "node and coordinator": ("node", "coordinator", "equal"),
        "node and freeze": ("node", "freeze", "equal"),
        "crash and partition": ("crash", "partition", "equal"),
        "node and crash": ("node", "crash", "equal"),
    }
    for row, (one, other, expected) in pairs.items():
        for point in ("forward", "vote", "exchange", "apply", "commit"):
            for group, recipe in deal(row + point, WIDE, 1):
                faults = [
                    Fault(one, point, 1, ATTEMPT, 1),
                    Fault(other, point, 1, ATTEMPT, strikes=2, lasts_s=20.0),
                ]
                yield scenario(row, point, group, recipe, faults[::-1], expected=expected)


def buddies() -> Iterator[Scenario]:
    """A worker and its buddy's node: the keeper of its own node has it. Its node and its buddy's: nobody has."""
    for point in ("forward", "vote", "exchange", "commit"):
        for group, recipe in deal("buddy" + point, WIDE, 1):
            nodes = sorted(set(group.nodes))
            own = group.nodes[1]
            buddy = group.nodes.index(nodes[(nodes.index(own) + 1) % len(nodes)])
            with_node = Fault("node", point, 1, ATTEMPT, strikes=buddy)
            crash = Fault("crash", point, 1, ATTEMPT, 1)
            yield scenario("worker and its buddy's node", point, group, recipe, [with_node, crash])
            both = [with_node, Fault("node", point, 1, ATTEMPT, 1)]
            yield scenario("node and its buddy's", point, group, recipe, both, expected="inexact")


def one_after_another() -> Iterator[Scenario]:
    """The second in the attempt after, or where the first one's successor has just come."""
    for kind in ("crash", "freeze", "drop", "coordinator", "keeper", "all"):
        for point in ("forward", "vote", "exchange", "commit"):
            for group, recipe in deal(f"next{kind}{point}", WIDE, 1):
                faults = [Fault("crash", "exchange", 1, 3, 1), Fault(kind, point, 2, 4, after=1)]
                yield scenario(f"{kind} after a crash", point, group, recipe, faults)


def late() -> Iterator[Scenario]:
    """Frames and copies that were sent in one view arrive in the next: they are refused."""
    after = {"copy": "exchange", "vote": "exchange", "exchange": "apply"}  # where worker 2 waits for worker 0 before
    for point in after:
        for group, recipe in deal("late" + point, [one for one in WIDE if len(one.nodes) == len(set(one.nodes))], 2):
            faults = [
                Fault("one-way", point, 0, ATTEMPT, other=1, lasts_s=4.0),  # the next node's keeper has its copies
                Fault("crash", after[point], 2, ATTEMPT, after=1),
            ]
            yield scenario("sent in the view before", point, group, recipe, faults, compute_s=2.0)
