"""What is noticed by a limit alone: hanging threads, lost letters, a coordinator that is away; and poison."""

from __future__ import annotations

from collections.abc import Iterator

from elastic_dgc.membership.limits import Limits
from elastic_dgc.simulation.faults import ANYBODY, SENT, Fault
from elastic_dgc.simulation.matrix.variations import ATTEMPT, GROUPS, Group, deal, plain, scenario
from elastic_dgc.simulation.scenario import Scenario

SHORT = Limits(
    forward_s=10.0, vote_s=20.0, exchange_s=20.0, evaluation_s=20.0, digest_s=20.0, checkpoint_s=20.0, flush_s=20.0,
    report_s=20.0,
)  # fmt: skip
WIDE = [one for one in GROUPS if len(one.nodes) >= 3 and one.virtual_workers >= len(one.nodes)]
THREE = Group(("a", "b", "c"), 4)


def hangs() -> Iterator[Scenario]:
    """A thread that stands still while its process beats: the limit of its phase removes it."""
    for point in ("forward", "apply", "flip", "commit", "digest", "checkpoint", "manifest"):
        for group, recipe in deal("hang" + point, WIDE, 1):
            attempt = 5 if point in ("checkpoint", "manifest") else ATTEMPT
            told = ("it hangs there", "forward of virtual worker") if point == "forward" else ("is lost",)
            faults = [Fault("hang", point, 1, attempt)]
            yield scenario("hang", point, group, recipe, faults, told=told, limits=SHORT)
    for point in ("report", "acknowledge", "install"):
        for group, recipe in deal("hang" + point, WIDE, 1):
            faults = [Fault("crash", "exchange", 1, ATTEMPT, 1), Fault("hang", point, 2, after=1)]
            yield scenario("hang", point, group, recipe, faults, limits=SHORT)


def losses() -> Iterator[Scenario]:
    """Letters that are lost without a sign: whoever waits for them suspects their sender, who answers, and sends them
    again."""
    for point in sorted(SENT):
        if point == "copy":
            continue  # nobody waits for it
        for group, recipe in deal("lose" + point, WIDE, 2, ("dense",) if point == "sum" else ("sparse", "dense")):
            faults = [Fault("lose", point, 1, ATTEMPT, other=0)]
            if point == "flush":
                faults = [Fault("crash", "vote", 2, ATTEMPT, 1), Fault("lose", point, 1, None, other=0, after=1)]
            yield scenario("letters lost", point, group, recipe, faults, limits=SHORT)


def away() -> Iterator[Scenario]:
    """The coordinator is away while training goes on, with a checkpoint at the next boundary; or for good."""
    for kind, lasts_s in (("away", 50.0), ("away", 5.0)):
        for group, recipe in deal(f"away{lasts_s}", WIDE, 2):
            long = lasts_s > 30
            faults = [Fault(kind, "forward", 0, 1, lasts_s=lasts_s)]
            yield scenario(
                "coordinator away", "forward", group, recipe, faults, note=f"{lasts_s:g}-s",
                compute_s=20.0 if long else 0.02, saves=3 if long else 0,
            )  # fmt: skip
    for group, recipe in deal("partition long", [THREE, Group(("a", "b", "b"), 3)], 2):
        yield scenario(
            "partition", "vote", group, recipe, [Fault("partition", "vote", 0, ATTEMPT, lasts_s=200.0)], note="long",
            to_the_last=True,
        )  # fmt: skip


def poison() -> Iterator[Scenario]:
    """The same attempt and virtual worker in three deaths stops the run and names them."""
    for group in (THREE, Group(("a",), 2), Group(("a", "a", "b"), 3)):
        for attempt in (0, ATTEMPT):
            faults = [Fault("poison", "forward", ANYBODY, attempt, 1)]
            yield scenario(
                "poison", "forward", group, plain(group.virtual_workers)[0], faults, note=f"{attempt}",
                expected="stopped", told=(f"attempt {attempt}, virtual worker 1",),
            )  # fmt: skip
