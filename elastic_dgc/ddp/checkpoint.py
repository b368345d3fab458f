"""The hook's part of a checkpoint: every rank's own u and v, and how another number of ranks takes them over.

u and v differ from rank to rank. Restoring rank 0's everywhere, as PyTorch's own PowerSGD example does, counts its
residual `world` times and loses everybody else's, so a state says whose it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from elastic_dgc.errors import UsageError

FORMAT = 1
StateDict = Mapping[str, Any]


def choose(given: StateDict | Sequence[StateDict], rank: int, world: int) -> list[StateDict]:
    """Those states whose sum this rank takes over, by their rank. Raises `UsageError` where it would be a wrong one."""
    states = [given] if isinstance(given, Mapping) else list(given)
    for state in states:
        if not isinstance(state, Mapping) or state.get("format") != FORMAT:
            found = state.get("format", "none") if isinstance(state, Mapping) else type(state).__name__
            raise UsageError(
                f"not a state of DGC for DDP in format {FORMAT} (found: {found}): pass what state_dict() gave"
            )
    if isinstance(given, Mapping):
        if (given["rank"], given["world"]) != (rank, world):
            raise UsageError(
                f"this state is of rank {given['rank']} of {given['world']}, and here is rank {rank} of {world}: every "
                f"rank must save its own, and load its own or the list of all"
            )
        return states
    if not states:
        raise UsageError("load_state_dict got an empty list: pass the states of all ranks")
    old, ranks = states[0]["world"], sorted(state["rank"] for state in states)
    if ranks != list(range(old)) or any(state["world"] != old for state in states):
        raise UsageError(f"the list has the states of ranks {ranks} of {old}: it must have each of them once")
    if len({state["applied"] for state in states}) > 1:
        raise UsageError(f"the states are of different steps: {[state['applied'] for state in states]}")
    return [state for state in sorted(states, key=lambda one: one["rank"]) if state["rank"] % world == rank]


def first_of(given: StateDict | Sequence[StateDict]) -> StateDict:
    """A state that speaks for what all have alike."""
    return given if isinstance(given, Mapping) else given[0]


def check(
    state: StateDict, optimizer: str, momentum: Mapping[str, tuple[float, bool]], v: Mapping[str, Tensor]
) -> None:
    """Raises `UsageError` where a state is of another model, or another momentum."""
    if state["optimizer"] != optimizer:
        raise UsageError(f"the state is of training with {state['optimizer']}, here it is {optimizer}")
    there = {name: tuple(value) for name, value in state["momentum"].items()}
    different = sorted(name for name in momentum.keys() & there.keys() if momentum[name] != there[name])
    if different or bool(there) != bool(momentum):
        name = different[0] if different else next(iter(there or momentum))
        raise UsageError(
            f"(momentum, nesterov) of {name} is {momentum.get(name, 'none')}, in the state it is "
            f"{there.get(name, 'none')}: u is a sum of gradients under that momentum, so it must be the same"
        )
    for part in ("u", "v") if momentum else ("v",):
        tensors = state[part]
        if tensors.keys() != v.keys():
            name = sorted(tensors.keys() ^ v.keys())[0]
            raise UsageError(
                f"the state {'has' if name in tensors else 'lacks'} {part} of {name}, which is "
                f"{'not trained here' if name in tensors else 'trained here'}: it is of another model"
            )
        for name, tensor in tensors.items():
            if tensor.shape != v[name].shape:
                raise UsageError(
                    f"{part} of {name} has shape {tuple(tensor.shape)} in the state, here it is {tuple(v[name].shape)}"
                )
            if not bool(torch.isfinite(tensor).all()):
                raise UsageError(f"{part} of {name} in the state has values that are not finite: it is damaged")


def load(views: Mapping[str, Tensor], parts: Sequence[Mapping[str, Tensor]]) -> None:
    """Change the views to the sum of the parts, added in their order."""
    for name, view in views.items():
        view.zero_()
        for part in parts:
            view.add_(part[name].to(view.device))
