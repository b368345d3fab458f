"""The hook's part of a checkpoint: every rank's own u and v, and how another number of ranks takes them over.

u and v differ from rank to rank. Restoring rank 0's everywhere, as PyTorch's own PowerSGD example does, counts its
residual `world` times and loses everybody else's, so a state says whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from elastic_dgc.ddp.checks import in_words
from elastic_dgc.errors import UsageError

FORMAT = 1
StateDict = Mapping[str, Any]


def choose(given: StateDict | Sequence[StateDict], rank: int, world: int) -> tuple[list[StateDict], StateDict]:
    """Those states whose sum this rank takes over, by their rank; and one that speaks for what all have alike. Every
    entry is looked at, whoever takes it. Raises `UsageError` where it would be a wrong one, or one is damaged."""
    if not isinstance(given, Mapping | list | tuple):
        raise UsageError(f"load_state_dict got {in_words(given)}: pass what state_dict() gave, or a list of those")
    states: list[StateDict] = [given] if isinstance(given, Mapping) else list(given)
    for number, state in enumerate(states):
        problem = _damage(state)
        if problem:
            place = "" if isinstance(given, Mapping) else f" (in entry {number} of {len(states)})"
            raise UsageError(f"not a state of DGC for DDP: {problem}{place}: pass what state_dict() gave")
    if isinstance(given, Mapping):
        if (given["rank"], given["world"]) != (rank, world):
            raise UsageError(
                f"this state is of rank {given['rank']} of {given['world']}, and here is rank {rank} of {world}: every "
                f"rank must save its own, and load its own or the list of all"
            )
        return states, given
    if not states:
        raise UsageError("load_state_dict got an empty list: pass the states of all ranks")
    old, ranks = states[0]["world"], sorted(state["rank"] for state in states)
    if ranks != list(range(old)) or any(state["world"] != old for state in states):
        raise UsageError(f"the list has the states of ranks {ranks} of {old}: it must have each of them once")
    if len({state["applied"] for state in states}) > 1:
        raise UsageError(f"the states are of different steps: {[state['applied'] for state in states]}")
    states.sort(key=lambda one: one["rank"])
    return [state for state in states if state["rank"] % world == rank], states[0]


def _damage(state: Any) -> str:
    """What a state lacks, or has of the wrong type; '' where it is whole."""
    if not isinstance(state, Mapping):
        return f"it is {in_words(state)}"
    if state.get("format", FORMAT) != FORMAT:
        return f"it is in format {state['format']}, not in format {FORMAT}"
    for name, (is_right, words) in _CONTENTS.items():
        if name not in state:
            return f"'{name}' is missing"
        if not is_right(state[name]):
            return f"'{name}' is {in_words(state[name])}, it must be {words}"
    return ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_momentum(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and isinstance(one, list | tuple)
        and len(one) == 2
        and isinstance(one[0], int | float)
        and isinstance(one[1], bool)
        for name, one in value.items()
    )


def _is_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and isinstance(one, Tensor)
        and one.is_floating_point()
        and one.layout is torch.strided
        and not one.is_meta
        for name, one in value.items()
    )


_COUNT = (_is_count, "a number of at least 0")
_TENSORS = (_is_tensors, "a dict of parameters' names and tensors of floats")
# everything that state_dict() gives
_CONTENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{name: _COUNT for name in ("format", "rank", "world", "applied", "skipped", "upload_bytes", "dense_bytes")},
    "fresh": (lambda value: isinstance(value, bool), "True or False"),
    "config": (lambda value: isinstance(value, Mapping), "a dict of settings"),
    "optimizer": (lambda value: isinstance(value, str), "a text"),
    "momentum": (_is_momentum, "a dict of parameters' names and (momentum, nesterov)"),
    "u": _TENSORS,
    "v": _TENSORS,
}


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
