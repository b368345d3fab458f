"""Shared state is equal on all workers (R2): how that is checked, who stands apart, and what becomes of those.

A check costs one small gather as long as all is well. Where something differs, the exact bytes are compared, the
tensors and workers are named, and either everyone raises the same `Disagreement`, or, where the user chose so and more
than half of the workers hold the same bytes, the others are overwritten with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from torch import Tensor

from elastic_dgc.errors import Disagreement
from elastic_dgc.exchange.ask import Steps
from elastic_dgc.keeping.serialize import pack, unpack
from elastic_dgc.log import logger
from elastic_dgc.precision.digest import Apart, count_different, differences, named_workers, tensor_digest
from elastic_dgc.precision.fingerprint import fingerprint
from elastic_dgc.step.replica import Replica
from elastic_dgc.step.state import copy_all
from elastic_dgc.trainer.group import Group
from elastic_dgc.trainer.words import count

SHOWN = 3  # tensors named in a message
COUNTER = "counter/"
START = "at start"


class Agreement:
    """The check, as one worker of a group sees it. `heal`: whether a majority overwrites those that differ from it;
    `hosts`: the workers' host names by rank, for messages. `verified` is the last verified checkpoint, in words."""

    def __init__(self, group: Group, replica: Replica, heal: bool = False, hosts: Sequence[str] = ()) -> None:
        self._group, self._replica, self._heal, self._hosts = group, replica, heal, hosts
        self.verified: str | None = None

    def check(self, what: str) -> int:
        """Everyone holds the same after this. Entered by all workers alike at a boundary; `what` is the occasion.
        Returns how many workers were healed.

        Raises `Disagreement`, on everyone with the same text, where they do not and are not healed. Healing changes
        tensors of shared state on those that differ, and `counters.healed` by their number on everyone.
        """
        return self._group.run(self.steps(what))

    def at_start(self) -> None:
        """As `check`, but nobody is healed: replicas that start apart are a mistake in the task. Before the first
        attempt the model's buffers are to be equal too: every virtual worker starts with those of its host."""
        self._group.run(self.starting())

    def starting(self) -> Steps[int]:
        """`at_start` as steps of a protocol."""
        fresh = self._replica.counters.attempt == 0
        also = {f"buffer/{name}": b for name, b in self._replica.model_buffers().items()} if fresh else {}
        return self.steps(START, also)

    def steps(self, what: str, also: Mapping[str, Tensor] | None = None) -> Steps[int]:
        """`check` as steps of a protocol. `also`: further tensors that are to be equal; they are never healed."""
        group, counters = self._group, self._replica.counters
        if group.members.size == 1:
            return 0
        suspects = yield from self._suspects(what, also or {})
        if not suspects:
            return 0
        apart, alike = yield from self._confirm(what, also or {})
        if not apart:
            if group.leads:
                logger(worker=0).warning(
                    "%s computed a wrong digest (%s, attempt %d), though all bytes are equal: look at its machine%s",
                    named_workers(suspects), what, group.attempt, self._machines(suspects),
                )  # fmt: skip
            return 0
        healing = self._heal and what != START and all(one.has_majority and one.name in alike for one in apart)
        told = yield from self._hand_over(what, also or {}, apart, alike, healing)
        workers = sorted({worker for one in apart for worker in one.apart})
        if not healing:
            raise Disagreement(
                f"workers hold different state ({what}, attempt {group.attempt}): {told}; {self._mend(what, apart)}"
            )
        counters.healed += len(workers)
        if (yield from self._suspects(what, {})):
            raise Disagreement(f"workers hold different state after healing ({what}, attempt {group.attempt}): {told}")
        if group.leads:
            logger(worker=0).warning(
                "healed from the majority (%s, attempt %d): %s. Healed means equal again, not undisturbed: steps since "
                "the last check were computed from unequal weights. Named again, a worker's memory is not to be "
                "trusted%s", what, group.attempt, told, self._machines(workers),
            )  # fmt: skip
        return len(workers)

    def _tensors(self, also: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**self._replica.export_shared()[0], **also}

    def _counters(self) -> dict[str, str]:
        values = self._replica.counters.export()
        return {f"{COUNTER}{name}": json.dumps(value) for name, value in values.items()}

    def _suspects(self, what: str, also: Mapping[str, Tensor]) -> Steps[list[int]]:
        """The cheap check: the workers whose fingerprint differs from most; nobody, if all are equal."""
        own = fingerprint(self._tensors(also), json.dumps(self._counters(), sort_keys=True))
        told = yield from self._group.gathering(own, what)
        found = differences([{"": one} for one in told])
        return list(found[0].apart) if found else []

    def _confirm(self, what: str, also: Mapping[str, Tensor]) -> Steps[tuple[list[Apart], set[str]]]:
        """By exact bytes: what differs, and the names of the tensors that have one shape and dtype on everyone."""
        tensors = self._tensors(also)
        own = {name: [tensor_digest(t), f"{t.dtype} {tuple(t.shape)}"] for name, t in tensors.items()}
        told = yield from self._group.gathering({"tensors": own, "counters": self._counters()}, what)
        exact = [{**{n: v[0] for n, v in one["tensors"].items()}, **one["counters"]} for one in told]
        odd = {one.name for one in differences([{n: v[1] for n, v in one["tensors"].items()} for one in told])}
        return differences(exact), own.keys() - odd

    def _hand_over(
        self, what: str, also: Mapping[str, Tensor], apart: list[Apart], alike: set[str], healing: bool
    ) -> Steps[str]:
        """Those that differ get what the first of the majority holds, count the values that differ, and, where
        `healing`, take it over. Returns what differs, in words, with these counts; the same on everyone."""
        group, tensors = self._group, self._tensors(also)
        rank = group.members.rank
        counted: dict[str, int] = {}
        for one in [one for one in apart if one.name in alike][: None if healing else SHOWN]:
            source = one.groups[0][0]
            payload = pack({one.name: tensors[one.name]}, {}) if rank == source else None
            arrived = yield from group.handing(payload, source, one.apart, what)
            if arrived is not None:
                theirs = unpack(arrived)[0]
                counted[one.name] = count_different(tensors[one.name], theirs[one.name])
                if healing:
                    copy_all({one.name: tensors[one.name]}, theirs, "a worker to be healed")
        by_worker = yield from group.gathering(counted, what)
        shown = [_with_counts(one, [c[one.name] for c in by_worker if one.name in c], tensors) for one in apart[:SHOWN]]
        return "; ".join(shown) + (f"; and {len(apart) - SHOWN} more" if len(apart) > SHOWN else "")

    def _mend(self, what: str, apart: list[Apart]) -> str:
        if what == START and self._replica.counters.attempt == 0:
            return (
                "a run starts from the same weights everywhere: draw them from torch, numpy or random, which are "
                "seeded, or read them from a file that is the same on all nodes"
            )
        if self.verified is None:
            state = "there is no checkpoint yet, the same command starts from the beginning"
        else:
            state = f"the last verified checkpoint, of {self.verified}, is untouched: the same command goes on from it"
        workers = sorted({worker for one in apart for worker in one.apart})
        return f"{state}{self._remedy(what, apart)}{self._machines(workers)}"

    def _remedy(self, what: str, apart: list[Apart]) -> str:
        if any(one.name.startswith(COUNTER) for one in apart) or what == START:
            return ""
        if self._group.members.size == 2:
            return "; with three workers or more, --heal majority overwrites one that differs from the others"
        if not all(one.has_majority for one in apart):
            return "; nobody can be healed where no majority holds the same"
        return "" if self._heal else "; --heal majority would overwrite what differs with what the others hold"

    def _machines(self, workers: Sequence[int]) -> str:
        """Where these workers run, if that says anything."""
        if len(set(self._hosts)) < 2:
            return ""
        return "; " + ", ".join(f"worker {rank} is on {self._hosts[rank]}" for rank in workers[:SHOWN])


def _with_counts(one: Apart, counts: list[int], tensors: Mapping[str, Tensor]) -> str:
    """'parameter/w' on worker 2 of 4 (1 of 864 values)."""
    if not counts:
        return str(one)
    low, high, numel = min(counts), max(counts), tensors[one.name].numel()
    return f"{one} ({low if low == high else f'{low} to {high}'} of {count(numel, 'value')})"
