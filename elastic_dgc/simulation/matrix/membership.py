"""Who comes and who goes: joins, planned leaves, too few workers, and the coordinator that ends between two actions."""

from __future__ import annotations

from collections.abc import Iterator

from elastic_dgc.membership.limits import Limits
from elastic_dgc.simulation.faults import ANYBODY, Fault
from elastic_dgc.simulation.matrix.variations import ATTEMPT, GROUPS, Group, deal, plain, scenario
from elastic_dgc.simulation.scenario import Scenario

WIDE = [one for one in GROUPS if len(one.nodes) >= 3 and one.virtual_workers >= len(one.nodes)]
FIRST = 2  # the attempt in which a worker comes or is told to go: four more follow


def joins() -> Iterator[Scenario]:
    """A worker more, at every point; and who is lost while it comes in."""
    for point in ("forward", "vote", "exchange", "apply", "commit", "digest"):
        for group, recipe in deal("join" + point, GROUPS, 2):
            yield scenario("join", point, group, recipe, [Fault("join", point, 0, FIRST)], room=1)
    for kind in ("crash", "node", "freeze", "drop", "coordinator"):
        for who in ("newcomer", "member"):
            for point in ("report", "flush", "acknowledge", "install"):
                if who == "newcomer" and point in ("report", "flush"):
                    continue  # it has no part in them
                for group, recipe in deal(f"join{kind}{who}{point}", WIDE, 1):
                    number = len(group.nodes) if who == "newcomer" else 1
                    # The newcomer is on the node of worker 0, so that its loss with the node is one with a buddy.
                    faults = [Fault("join", "forward", 0, FIRST), Fault(kind, point, number, None, after=1)]
                    expected = "unprotected" if kind == "node" else "equal"  # so early no round is complete
                    yield scenario(
                        f"{kind} in a join", point, group, recipe, faults, note=who, expected=expected, room=1,
                        again=False,
                    )  # fmt: skip


def leaves() -> Iterator[Scenario]:
    """A planned leave at every point, exact; and who is lost meanwhile."""
    for point in ("forward", "vote", "exchange", "apply", "commit", "digest"):
        for group, recipe in deal("leave" + point, GROUPS, 2):
            yield scenario("leave", point, group, recipe, [Fault("leave", point, 1, FIRST)])
    for kind in ("crash", "node", "freeze", "coordinator"):
        for who in ("leaver", "member"):
            for point in ("report", "flush", "acknowledge", "install"):
                if who == "leaver" and point == "install":
                    continue  # it is out
                for group, recipe in deal(f"leave{kind}{who}{point}", WIDE, 1):
                    faults = [
                        Fault("leave", "forward", 1, FIRST),
                        Fault(kind, point, 1 if who == "leaver" else 2, None, after=1),
                    ]
                    expected = "unprotected" if kind == "node" else "equal"
                    yield scenario(f"{kind} in a leave", point, group, recipe, faults, note=who, expected=expected)
    for group in (Group(("a", "b"), 3), Group(("a",), 2)):
        faults = [Fault("leave", "forward", n, FIRST) for n in range(len(group.nodes))]
        yield scenario(
            "leave", "forward", group, plain(group.virtual_workers)[0], faults, note="all-of-them", expected="saved",
            told=("all workers leave",),
        )  # fmt: skip


def bystanders() -> Iterator[Scenario]:
    """Who has no part in it: a spare that leaves, wherever it is; a newcomer that is lost before its view is there, and
    hears of it when all others are gone."""
    for group in (Group(("a", "a"), 1), Group(tuple("abcde"), 2)):
        for point in ("forward", "vote", "exchange", "commit"):
            for number in range(len(group.nodes)):  # all but K of them are spares
                for _, recipe in deal(f"spare{point}{group}", [group], 1):
                    faults = [Fault("leave", point, ANYBODY, FIRST, strikes=number)]
                    yield scenario("leave", point, group, recipe, faults, note=f"spare-{number}", compute_s=0.2)
    for group, recipe in deal("cut newcomer", [Group(("a",), 2), Group(("a",), 3)], 2):
        faults = [Fault("crash", "vote", 0, ATTEMPT), Fault("head", "acknowledge", 1, after=1)]
        yield scenario("head in a join", "acknowledge", group, recipe, faults, note="the only one")


def last_words() -> Iterator[Scenario]:
    """The run is done, and not everybody gets to say so, or to hear it: a newcomer finds nothing left to do."""
    for group, recipe in deal("last words", [Group(("a", "a"), 3), Group(("a",), 4)], 2):
        end = recipe.attempts
        faults = [Fault("join", "commit", 0, end - 1), Fault("head", "manifest", 0, end, lasts_s=1.0)]
        yield scenario("head", "manifest", group, recipe, faults, note="last-words")
    for point, attempt in (("commit", 5), ("copy", 6), ("digest", 6), ("checkpoint", 6), ("manifest", 6)):
        for group, recipe in deal("last drop" + point, WIDE, 4):
            faults = [Fault("drop", point, 0, attempt, other=1)]
            yield scenario("drop", point, group, recipe, faults, note="last", to_the_last=True)


def pauses() -> Iterator[Scenario]:
    """Too few workers, or too little room: until there are more, or until the run has waited long enough."""
    three = Group(("a", "b", "c"), 4)
    short = Limits(pause_s=60.0, flush_s=20.0)  # longer than any phase may last
    for point in ("forward", "vote", "exchange", "commit"):
        for kind in ("crash", "node"):
            for note, more in (
                ("least", {"min_workers": 3}),
                ("room", {"capacity": 2}),
                ("elsewhere", {"min_workers": 3, "replace": "elsewhere"}),
            ):
                group = Group(three.nodes, 5) if note == "room" else three
                recipe = next(deal(f"pause{point}{kind}{note}", [group], 1))[1]
                told = ("of at least 3 workers",) if note != "room" else ("have room for 4 of 5",)
                yield scenario(
                    "too few workers", point, group, recipe, [Fault(kind, point, 1, ATTEMPT, 1)], note=f"{kind}-{note}",
                    told=told, **more,
                )  # fmt: skip
        recipe = next(deal(f"pause{point}", [three], 1))[1]
        yield scenario(
            "too few workers", point, three, recipe, [Fault("crash", point, 1, ATTEMPT, 1)], note="for-ever",
            expected="saved", told=("of waiting for more",), min_workers=3, replace="never", limits=short,
        )  # fmt: skip
        yield scenario(
            "all", point, three, recipe, [Fault("all", point, 1, ATTEMPT)], note="for-ever", expected="stopped",
            told=("0 of at least 1 workers",), replace="never", limits=short,
        )  # fmt: skip


def coordinator() -> Iterator[Scenario]:
    """It ends before each of its actions, from the first fault on."""
    causes = {
        "crash": (Fault("crash", "exchange", 1, ATTEMPT, 1), 15, {}),
        "node": (Fault("node", "vote", 1, ATTEMPT, 1), 14, {}),
        "join": (Fault("join", "forward", 0, FIRST), 23, {"room": 1}),
        "leave": (Fault("leave", "forward", 1, FIRST), 19, {}),
    }
    for cause, (fault, actions, more) in causes.items():
        for action in range(actions):
            group = (Group(("a", "b", "c"), 4), Group(("a", "a", "b"), 3))[action % 2]
            recipe = plain(group.virtual_workers)[action % 8]
            faults = [fault, Fault("coordinator", "action", reached=action, after=1)]
            yield scenario(
                f"coordinator after a {cause}", "action", group, recipe, faults, note=f"{action}", **more  # type: ignore[arg-type]
            )  # fmt: skip
    for action in range(12):  # from the very start
        group = Group(("a", "b"), 3)
        faults = [Fault("coordinator", "action", reached=action)]
        yield scenario(
            "coordinator at the start", "action", group, plain(3)[action % 8], faults, note=f"{action}", min_workers=2
        )  # fmt: skip
