"""What a scenario runs on."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_dgc.membership.limits import Limits
from elastic_dgc.simulation.training import Recipe

HEAD = "head"  # the node of the coordinator


@dataclass(frozen=True)
class Setting:
    """`nodes`: of each worker that is there from the beginning. `replace`: where the platform starts another process
    for one that ended: 'here', 'elsewhere' (on a node of its own), or 'never'. `chunks`: of a rolling snapshot's round.
    `room`: how many workers more the view may have. `compute_s`: of a training thread between two waits, at most.
    `limit_s`: of virtual time, for all. `to_the_last`: until every process has ended, those that were left out too."""

    recipe: Recipe = field(default_factory=Recipe)
    nodes: tuple[str, ...] = ("a", "b", "c")
    fast: bool = False
    strict: bool = False
    chunks: int = 2
    replace: str = "here"
    min_workers: int = 1
    room: int = 0
    capacity: int = 1 << 30
    limits: Limits = field(default_factory=Limits)
    budget_bytes: int = 1 << 24
    compute_s: float = 0.02
    limit_s: float = 600.0
    to_the_last: bool = False

    def __post_init__(self) -> None:
        if self.replace not in ("here", "elsewhere", "never") or HEAD in self.nodes:
            raise ValueError(f"replace = {self.replace!r}, nodes = {self.nodes}: no such platform")
