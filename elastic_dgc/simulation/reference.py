"""The undisturbed run that every scenario is held against: one worker that hosts everything, and nothing fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from elastic_dgc.exchange.members import Members
from elastic_dgc.exchange.memory import run_together
from elastic_dgc.keeping import serialize
from elastic_dgc.protocol.packing import load_owned, pack_owned
from elastic_dgc.simulation.digest import bytes_digest, owned_digest, shared_digest
from elastic_dgc.simulation.durable import MemoryDurable
from elastic_dgc.simulation.training import Recipe, Training
from elastic_dgc.step.attempt import Outcome, attempt


@dataclass(frozen=True)
class Reference:
    """By the number of decided attempts: `decided` and `owned` digests just after the attempt, `left` the digest of
    shared state after what is due at that boundary, `saved` the parts of a checkpoint there. By attempt: `committed`,
    and the virtual workers that `skipped` it. `first`: the weights before any attempt."""

    decided: tuple[str, ...]
    left: tuple[str, ...]
    owned: tuple[tuple[str, ...], ...]  # [decided][virtual worker]
    saved: tuple[Mapping[str, str], ...]
    committed: tuple[bool, ...]
    skipped: tuple[tuple[int, ...], ...]
    first: Tensor


def reference(recipe: Recipe) -> Reference:
    """Raises AssertionError where a checkpoint of it is not what it was saved from."""
    return _reference(replace(recipe, digest_every=1, checkpoint_every=1))  # they change nothing


@cache
def _reference(recipe: Recipe) -> Reference:
    members = Members.of(0, 1, recipe.virtual_workers)
    training = Training(recipe, MemoryDurable())
    replica = training.replica(members.hosted)
    first = replica.weights.clone()
    decided, left, owned, saved = [], [], [], []
    outcomes: list[Outcome] = []
    for number in range(recipe.attempts + 1):
        decided.append(shared_digest(replica))
        owned.append(tuple(owned_digest(replica.owned[k]) for k in members.hosted))
        if "evaluation" in training.due(number):  # the only thing there that changes anything
            run_together([training.together("evaluation", replica, members, number, 1)])
        left.append(shared_digest(replica))
        parts = {f"owned-{k}": pack_owned(replica.owned[k]) for k in members.hosted}
        parts["shared"] = serialize.pack(*replica.export_shared())
        if number == recipe.attempts:
            _loads(training, parts, left[-1], owned[-1])
        saved.append({name: bytes_digest(part) for name, part in parts.items()})
        if number < recipe.attempts:
            outcomes += run_together(
                [attempt(replica, members, lambda k, n=number: training.batches(n, k), training.loss)]  # type: ignore[misc]
            )
    return Reference(
        tuple(decided), tuple(left), tuple(owned), tuple(saved), tuple(one.committed for one in outcomes),
        tuple(one.decision.bad for one in outcomes), first,
    )  # fmt: skip


@torch.no_grad()
def _loads(training: Training, parts: Mapping[str, bytes], shared: str, owned: tuple[str, ...]) -> None:
    """What is equal to these parts, byte for byte, can be loaded and gives this state."""
    fresh = training.replica(range(len(owned)))
    fresh.load_shared(*serialize.unpack(parts["shared"]))
    for k, one in fresh.owned.items():
        load_owned(one, parts[f"owned-{k}"])
        assert owned_digest(one) == owned[k], f"a checkpoint of virtual worker {k} is not its state"
    assert shared_digest(fresh) == shared, "a checkpoint of shared state is not that state"
