"""Groups of workers and recipes that the faults of the matrix are dealt over, so that each meets many of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from elastic_dgc.simulation.faults import Fault
from elastic_dgc.simulation.scenario import Scenario
from elastic_dgc.simulation.setting import Setting
from elastic_dgc.simulation.training import Recipe

ATTEMPT = 4  # of most faults: one complete round of rolling snapshots is there, and two attempts follow


@dataclass(frozen=True)
class Group:
    """Workers by node, and the virtual workers they share."""

    nodes: tuple[str, ...]
    virtual_workers: int

    def __str__(self) -> str:
        return f"{''.join(self.nodes)}{self.virtual_workers}"

    @property
    def several_nodes(self) -> bool:
        return len(set(self.nodes)) > 1


GROUPS = tuple(
    Group(tuple(nodes), k)
    for nodes, k in (
        ("abc", 4), ("aab", 4), ("ab", 3), ("abc", 3), ("aabb", 5), ("abcde", 8), ("ab", 2), ("abcd", 6), ("aabc", 7),
        ("abcde", 5), ("abc", 2), ("aab", 6), ("abcd", 4),
    )
)  # fmt: skip
ALONE = (Group(("a",), 1), Group(("a",), 3), Group(("a", "a"), 2), Group(("a", "a", "a"), 5))
KINDS = ("sparse", "warm-up", "dense", "adam")


def recipes(virtual_workers: int) -> Sequence[Recipe]:
    """All kinds, each with and without a loss scale that moves, and with an overflow in the attempt of the fault."""
    last = virtual_workers - 1
    return [
        Recipe(virtual_workers=virtual_workers, kind=kind, scaled=scaled, overflow=overflow)
        for kind in KINDS
        for scaled in (False, True)
        for overflow in (None, (ATTEMPT, last))
    ]


def plain(virtual_workers: int) -> list[Recipe]:
    """Those in which the attempt of the fault is a commit."""
    return [one for one in recipes(virtual_workers) if one.overflow is None]


def number_of(name: str) -> int:
    """A number that a name always has: what a scenario's seed and its share of the variations are drawn from."""
    return zlib.crc32(name.encode())


def deal(
    name: str, groups: Sequence[Group], times: int, kinds: Sequence[str] = KINDS
) -> Iterator[tuple[Group, Recipe]]:
    """So many of these groups with a recipe each, drawn by the name."""
    first = number_of(name)
    for n in range(times):
        group = groups[(first + n) % len(groups)]
        fitting = [one for one in plain(group.virtual_workers) if one.kind in kinds]
        yield group, fitting[(first // 64 + 3 * n) % len(fitting)]


def title(recipe: Recipe) -> str:
    """A recipe in short: 'sparse', 'dense-scaled-overflow'."""
    return recipe.kind + "-scaled" * recipe.scaled + "-overflow" * (recipe.overflow is not None)


def scenario(
    row: str, column: str, group: Group, recipe: Recipe, faults: Sequence[Fault], *, note: str = "",
    expected: str = "equal", told: tuple[str, ...] = (), again: bool = False, saves: int = 0, **setting: object,
) -> Scenario:  # fmt: skip
    """One of the matrix, named by all that makes it."""
    name = "/".join(part for part in (row, column, note, str(group), title(recipe)) if part).replace(" ", "-")
    return Scenario(
        name, Setting(recipe=recipe, nodes=group.nodes, **setting), tuple(faults), number_of(name) & 0xFFFF,  # type: ignore[arg-type]
        expected, row, column, told, again, True, saves,
    )  # fmt: skip
