"""One fault at every point of an attempt and of a boundary."""

from __future__ import annotations

from collections.abc import Iterator

from elastic_dgc.simulation.faults import ANYBODY, SENT, Fault
from elastic_dgc.simulation.matrix.variations import (
    ALONE,
    ATTEMPT,
    GROUPS,
    KINDS,
    Group,
    deal,
    recipes,
    scenario,
)
from elastic_dgc.simulation.scenario import Scenario

POINTS = (
    "forward", "vote", "exchange", "sum", "apply", "flip", "commit", "copy", "evaluation", "digest", "checkpoint",
    "manifest",
)  # fmt: skip
FAULTS = (
    "crash", "node", "freeze", "doze", "stuck", "drop", "one-way", "partition", "head", "keeper", "coordinator", "all",
    "all and coordinator",
)  # fmt: skip
OWN = ("forward", "flip", "copy")  # points that a worker without virtual workers does not come to
TIMES = 2  # so many groups and recipes for each


def attempt_of(point: str) -> int:
    """When a fault strikes: attempts, or attempts decided at a boundary, which is where `Recipe.due` has it."""
    return {"checkpoint": 5, "manifest": 5, "copy": 4}.get(point, ATTEMPT)


def fault(kind: str, point: str, worker: int, reached: int = 0, **more: int) -> Fault:
    """A 'doze' is a freeze that is over before anybody minds."""
    lasts_s = {"doze": 2.0}.get(kind, 30.0)
    return Fault(
        "freeze" if kind == "doze" else kind, point, worker, attempt_of(point), reached, lasts_s=lasts_s, **more
    )


def singles() -> Iterator[Scenario]:
    """Every fault at every point."""
    for kind in FAULTS:
        for point in POINTS:
            for reached in (0, 1) if point in SENT and kind in ("crash", "node") else (0,):
                name = f"{kind}{point}{reached}"
                groups = [one for one in GROUPS if one.virtual_workers >= len(one.nodes) or point not in OWN]
                kinds = ("dense",) if point == "sum" else KINDS
                for group, recipe in deal(name, groups, TIMES, kinds):
                    note = f"{reached}" if point in SENT else ""
                    yield scenario(kind, point, group, recipe, [fault(kind, point, 1, reached)], note=note)


def alone() -> Iterator[Scenario]:
    """All on one node, down to one worker: the keeper has it all."""
    for kind in ("crash", "freeze", "keeper", "coordinator", "all", "all and coordinator", "head"):
        for point in ("forward", "vote", "exchange", "apply", "flip", "commit", "digest", "manifest"):
            for group, recipe in deal(f"alone{kind}{point}", ALONE, 1):
                yield scenario(kind, point, group, recipe, [fault(kind, point, 0)], note="one-node")


def overflows() -> Iterator[Scenario]:
    """An overflow in the very attempt of the fault: skipped by all."""
    for kind in ("crash", "node", "freeze", "all"):
        for point, reached in (("forward", 0), ("vote", 0), ("vote", 1), ("vote", 2)):
            for n, group in enumerate(GROUPS[:2]):
                fitting = [one for one in recipes(group.virtual_workers) if one.overflow is not None]
                recipe = fitting[(3 * n + len(kind) + len(point) + reached) % len(fitting)]
                yield scenario(
                    kind, point, group, recipe, [fault(kind, point, ANYBODY if kind == "all" else 1, reached)],
                    note=f"overflow-{reached}",
                )  # fmt: skip


def sizes() -> Iterator[Scenario]:
    """K from 1 to 8 on 1 to 5 workers, spares among them."""
    for workers in range(1, 6):
        for k in range(1, 9):
            group = Group(tuple("abcde"[:workers]), k)
            kind, point = (("crash", "exchange"), ("crash", "vote"), ("node", "commit"))[(workers + k) % 3]
            if workers == 1:
                kind = "crash"
            point = "vote" if workers > k else point  # the only point that spares come to
            recipe = recipes(k)[4 * ((workers * k) % 4)]
            yield scenario(kind, point, group, recipe, [fault(kind, point, workers - 1, 1)], note="size")
