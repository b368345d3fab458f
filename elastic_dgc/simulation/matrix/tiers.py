"""Where an orphan's state comes from: every tier, damaged copies, and what is told where no exact one can be left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from elastic_dgc.simulation.faults import Fault
from elastic_dgc.simulation.matrix.variations import ATTEMPT, GROUPS, Group, deal, plain, scenario
from elastic_dgc.simulation.scenario import Scenario

THREE = Group(("a", "b", "c"), 4)
POINTS = ("forward", "vote", "exchange", "commit")
FULL = [one for one in GROUPS if one.virtual_workers >= len(one.nodes)]
STALE_TOO = ("sparse", "warm-up", "adam")


def too_early() -> Iterator[Scenario]:
    """A node lost before its first round of snapshots is complete: zeros, said loudly; strictly, a stop. But nothing
    is lost before the first attempt."""
    for point in POINTS:
        for group, recipe in deal("early" + point, [THREE, Group(("a", "a", "b"), 3)], 2):
            faults = [Fault("node", point, 1, 1, 1)]
            yield scenario(
                "node, no round yet", point, group, recipe, faults, expected="inexact", told=("lost_mass at most",)
            )
            if point != "commit":
                yield scenario("node, nothing decided", point, group, recipe, [Fault("node", point, 1, 0, 1)])
        recipe = plain(4)[0]
        yield scenario(
            "node, no round yet", point, THREE, recipe, [Fault("node", point, 1, 1, 1)], note="strict",
            expected="stopped", told=("strict = True takes no other",), strict=True,
        )  # fmt: skip


def fast() -> Iterator[Scenario]:
    """Fast mode takes what is there at once: exact from a keeper, else the newest copy without what was sent since."""
    for point in POINTS:
        for group, recipe in deal("fast" + point, [one for one in GROUPS if len(one.nodes) > 1], 2, STALE_TOO):
            number = next(n for n in (1, 0) if n < group.virtual_workers)
            yield scenario("crash, fast", point, group, recipe, [Fault("crash", point, number, ATTEMPT, 1)], fast=True)
        for group, recipe in deal("fast node" + point, [THREE, Group(("a", "a", "b"), 4)], 3, STALE_TOO):
            for note, every in (("snapshot", 5), ("checkpoint", 3)):
                yield scenario(
                    "node, fast", point, group, replace(recipe, checkpoint_every=every),
                    [Fault("node", point, 1, ATTEMPT, 1)], note=note, expected="inexact", fast=True,
                    told=("lost_mass at most",),
                )  # fmt: skip


def damaged() -> Iterator[Scenario]:
    """A bit flips in a buddy's copies: the piece before is taken, where there is one, and the damaged one is named."""
    for point in POINTS[:3]:
        for group, recipe in deal("damage" + point, [THREE, Group(("a", "b"), 3), Group(("a", "a", "b"), 4)], 2):
            nodes = sorted(set(group.nodes))
            buddy = group.nodes.index(nodes[(nodes.index(group.nodes[1]) + 1) % len(nodes)])
            for every, expected in ((0, "equal"), (1, "inexact")):
                if point == "forward" and not every:
                    continue  # the next piece is on its way: whether there is one before it is chance
                faults = [
                    Fault("damage", point, 1, ATTEMPT + 1, every, strikes=buddy),
                    Fault("node", point, 1, ATTEMPT + 1, 1),
                ]
                yield scenario(
                    "node, copy damaged", point, group, replace(recipe, checkpoint_every=100), faults,
                    note=("one", "all")[every], expected=expected,
                    told=("passed over", "damaged"),
                )  # fmt: skip


def lasting() -> Iterator[Scenario]:
    """A node that never comes back: its workers are replaced on others, or not at all."""
    for point in POINTS:
        for where in ("elsewhere", "never"):
            for group, recipe in deal(f"lasting{point}{where}", FULL, 2):
                number = next(n for n in (1, 0) if n < group.virtual_workers)
                faults = [Fault("node", point, number, ATTEMPT, 1, lasts_s=100_000.0)]
                yield scenario("node, for ever", point, group, recipe, faults, note=where, replace=where)


def nothing_left() -> Iterator[Scenario]:
    """Every node lost: the newest durable checkpoint is gone on from, or the beginning, and what was decided since is
    trained again, to the same result."""
    for point in POINTS:
        for every in (2, 5):
            group, recipe = next(deal(f"every{point}{every}", GROUPS, 1))
            recipe = replace(recipe, checkpoint_every=every)
            yield scenario(
                "every node", point, group, recipe, [Fault("every node", point, 0, ATTEMPT)],
                note=f"saved-every-{every}", again=True,
            )  # fmt: skip
    for kind in ("node", "every node"):
        recipe = replace(plain(3)[0], checkpoint_every=2)
        yield scenario(
            kind,
            "forward",
            Group(("a",), 3),
            recipe,
            [Fault(kind, "forward", 0, ATTEMPT)],
            note="the-only-one",
            again=True,
        )
    # An old log is on the node that goes on from storage.
    for group, recipe in deal("old log", [Group(("a", "b"), 3), Group(("a", "b"), 2)], 2, ("dense", "sparse")):
        faults = [Fault("crash", "commit", 0, 2), Fault("node", "exchange", 1, 5, after=1)]
        yield scenario(
            "node", "exchange", group, replace(recipe, checkpoint_every=2), faults, note="old-log", again=True
        )
    # What came back inexact is trained again, from before.
    for group, recipe in deal("inexact, and again", [THREE, Group(("a", "b"), 3)], 2, STALE_TOO):
        faults = [Fault("node", "commit", 1, 1, lasts_s=200.0), Fault("every node", "forward", 0, 2, after=1)]
        recipe = replace(recipe, checkpoint_every=100)
        yield scenario(
            "every node", "forward", group, recipe, faults, note="after-an-inexact-copy", expected="inexact", again=True
        )
    # Its state of one virtual worker is damaged in storage, and nobody else has it: zeros there, and said.
    recipe = replace(plain(3)[0], checkpoint_every=2)
    faults = [Fault("spoil", "forward", 0, ATTEMPT, 1), Fault("every node", "forward", 0, ATTEMPT)]
    yield scenario(
        "every node", "forward", Group(("a", "b"), 3), recipe, faults, note="checkpoint-damaged", expected="inexact",
        again=True, told=("passed over",),
    )  # fmt: skip


def prepared() -> Iterator[Scenario]:
    """A worker has applied an attempt whose messages of it the others never got, and ends: its keeper has both."""
    for nodes in (("a", "a"), ("a", "a", "a"), ("a", "b"), ("a", "a", "b")):
        for kind in ("crash", "node", "all"):
            if kind == "node" and len(set(nodes)) == 1:
                continue
            group = Group(nodes, 3)
            for kinds in ("sparse", "dense"):
                recipe = next(one for one in plain(3) if one.kind == kinds)
                faults = [Fault("drop", "exchange", 1, ATTEMPT, other=0), Fault(kind, "commit", 1, ATTEMPT)]
                yield scenario(f"{kind}, message lost", "commit", group, recipe, faults)


def returning() -> Iterator[Scenario]:
    """A node that was cut off before any copy was whole comes back with a log that is ahead, while its copy is waited
    for."""
    for nodes in ("ab", "acd"):
        for kinds in ("sparse", "dense"):
            group = Group(tuple(nodes), 1)
            for _, recipe in deal(f"returning{nodes}{kinds}", [group], 1, (kinds,)):
                yield scenario("partition", "vote", group, recipe, [Fault("partition", "vote", 0, 1)], note="returning")


def ahead() -> Iterator[Scenario]:
    """What a worker sent is lost on its way to one of the others; it goes on, its copies with it, and ends. Where its
    node is gone too, nobody knows of the attempt that it decided."""
    for nodes in (("a", "b"), ("a", "b", "c"), ("a", "a", "b")):
        group, last = Group(nodes, 3), len(nodes) - 1
        for kind in ("crash", "node", "stuck"):
            for what in ("vote", "exchange"):
                for point in ("commit", "copy", "forward"):
                    if what == "vote" and point == "copy":
                        continue
                    at = {"commit": ATTEMPT, "copy": ATTEMPT + 1, "forward": ATTEMPT + 1}[point]
                    recipe = next(deal(f"ahead{nodes}{kind}{what}{point}", [group], 1))[1]
                    faults = [Fault("lose", what, last, ATTEMPT, other=0), Fault(kind, point, last, at, 99)]
                    yield scenario(f"{kind} of one that is ahead", point, group, recipe, faults, note=what)
