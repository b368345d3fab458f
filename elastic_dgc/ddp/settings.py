"""What must be equal on all ranks: told when they meet in `attach`, and as a digest in every vote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from elastic_dgc.compression.layout import Layout
from elastic_dgc.ddp.config import DGC
from elastic_dgc.ddp.optimizer import is_sgd, taken_from
from elastic_dgc.errors import Disagreement

_WORDS = {"dgc_momentum": "momentum", "dgc_nesterov": "nesterov", "dgc_weight_decay": "weight decay"}


def settings_of(config: DGC, optimizer: Optimizer, layout: Layout, world: int, scaler: Any) -> str:
    """As JSON: DGC's fields, whether the loss is scaled, what is taken over of every param group (the same before
    and after it is), the parameters' names and shapes (a digest), the number of ranks."""
    told: dict[str, Any] = config.model_dump(mode="json")
    told |= {"scaler": "none" if scaler is None else "a GradScaler"}
    if is_sgd(optimizer):
        told |= {"optimizer": "SGD", "the number of param groups": len(optimizer.param_groups)}
        for number, group in enumerate(optimizer.param_groups):
            taken = taken_from(group)
            told[f"param group {number}"] = {words: taken[key] for key, words in _WORDS.items()}
    else:
        told["optimizer"] = type(optimizer).__name__
    told |= {"parameters": layout.digest.hex()[:16], "ranks": world}
    return json.dumps(told)


def disagreement(settings: Sequence[str]) -> Disagreement:
    """The error that names which of the settings, JSON by rank, differs: 'density is 0.01 on rank 1 and 0.001 on
    rank 0'."""
    return Disagreement(f"{_different(settings)}: all ranks must run the same script with the same settings")


def _different(settings: Sequence[str]) -> str:
    first, *others = [json.loads(one) for one in settings]
    for rank, one in enumerate(others, start=1):
        for name in first | one:
            here, there = one.get(name), first.get(name)
            if here != there and isinstance(here, dict) and isinstance(there, dict):
                part = next(part for part in there if here.get(part) != there[part])
                name, here, there = f"{part} of {name}", here.get(part), there[part]
            if here != there:
                return f"{name} is {here} on rank {rank} and {there} on rank 0"
    return "settings differ"
