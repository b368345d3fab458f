"""Who is removed where everyone reaches the coordinator, but some cannot reach each other.

Both ends of a cut link suspect each other, so suspicion cannot decide; what the survivors reached just now can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet


def removed_for_reach(order: Sequence[str], reachable: Mapping[str, AbstractSet[str]]) -> tuple[str, ...]:
    """Those that must go until all the others reach each other, in the order of removal. Pure.

    `order`: uids by rank. `reachable`: per uid, whom it reached. A link counts if both of its ends say so. One goes
    at a time: whoever reaches fewest, of those the highest rank.
    """
    staying = list(order)
    removed: list[str] = []
    while True:
        links = {
            one: sum(other in reachable[one] and one in reachable[other] for other in staying if other != one)
            for one in staying
        }
        if all(count == len(staying) - 1 for count in links.values()):
            return tuple(removed)
        worst = min(reversed(staying), key=lambda one: links[one])
        staying.remove(worst)
        removed.append(worst)
