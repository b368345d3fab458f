"""What is taken over from the optimizer: SGD's momentum and weight decay act before the compression, not after it.

Applied to the sum of messages by the optimizer they would act twice, or on a gradient that is mostly zeros
(Paddle#20758, Paddle#21278). So `momentum`, `nesterov` and `weight_decay` of every param group move to the keys
`dgc_momentum`, `dgc_nesterov` and `dgc_weight_decay` of the same group, which the optimizer's own state_dict carries.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from elastic_dgc.compression.accumulate import Momentum, Rule
from elastic_dgc.ddp.checks import in_words
from elastic_dgc.errors import UsageError

TAKEN = {"momentum": "dgc_momentum", "nesterov": "dgc_nesterov", "weight_decay": "dgc_weight_decay"}
_ZERO = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
_attached: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def unwrap(optimizer: Any) -> Optimizer:
    """The optimizer of torch inside of a wrapper's (Accelerate's, Lightning's). Raises `UsageError`: there is none,
    or it is unsuited."""
    inner = optimizer
    while isinstance(getattr(inner, "optimizer", None), Optimizer):
        inner = inner.optimizer
    if not isinstance(inner, Optimizer):
        raise UsageError(f"optimizer is {in_words(optimizer)}; attach needs one of torch.optim")
    if isinstance(inner, torch.optim.LBFGS | torch.optim.SparseAdam):
        why = (
            "it computes several gradients a step" if isinstance(inner, torch.optim.LBFGS) else "it is for sparse ones"
        )
        raise UsageError(f"optimizer {type(inner).__name__} cannot apply compressed gradients: {why}; use SGD or AdamW")
    if inner in _attached:
        raise UsageError(
            "this optimizer is attached already, and its momentum taken over: make a new one for a new DDP model"
        )
    return inner


def check_owner(optimizer: Optimizer, trained: Mapping[str, Tensor]) -> None:
    """Raises `UsageError` where the optimizer lacks one of the trained parameters (by name), or what is to be taken
    over from it would be lost to others."""
    groups = optimizer.param_groups
    owned = {id(parameter) for group in groups for parameter in group["params"]}
    missing = [name for name, parameter in trained.items() if id(parameter) not in owned]
    if missing:
        raise UsageError(
            f"the optimizer does not have parameter {missing[0]} ({len(missing)} in all), whose gradient DDP "
            f"reduces: give it to the optimizer, or freeze it with requires_grad_(False) before DDP is built"
        )
    known = {id(parameter) for parameter in trained.values()}
    for number, group in enumerate(groups if is_sgd(optimizer) else []):
        strangers = [p for p in group["params"] if id(p) not in known and p.requires_grad]
        if strangers and (group["momentum"] or group["weight_decay"]):
            raise UsageError(
                f"param group {number} of the optimizer has {len(strangers)} trained parameters that DDP does not "
                f"reduce (the first of shape {tuple(strangers[0].shape)}); they would lose their momentum and "
                f"weight decay: give them an optimizer of their own"
            )


def is_sgd(optimizer: Optimizer) -> bool:
    """Whether the step is that of torch's SGD: a subclass with a step of its own keeps what it does."""
    return isinstance(optimizer, SGD) and inspect.unwrap(type(optimizer).step) is inspect.unwrap(SGD.step)


def taken_from(group: Mapping[str, Any]) -> dict[str, Any]:
    """The `dgc_*` values of one param group of SGD, which it has or will have. A group from a state that was saved
    under DGC has them already."""
    if all(key in group for key in TAKEN.values()) and not group["momentum"] and not group["weight_decay"]:
        return {key: group[key] for key in TAKEN.values()}
    return {key: bool(group[name]) if name == "nesterov" else float(group[name]) for name, key in TAKEN.items()}


@dataclass(frozen=True)
class Own:
    """One trained parameter: its name, and the number of its param group."""

    name: str
    parameter: Tensor
    group: int


class TakenOver:
    """The rules that SGD's param groups give, and a guard that the optimizer does not apply them too.

    `corrected`: SGD, so momentum correction or at least local weight decay; else plain error feedback of the gradient,
    and the optimizer keeps what it does. `with_momentum`: there is a u. `fresh`: it began at zero; torch's
    first step with a new momentum buffer knows no dampening.
    """

    def __init__(self, optimizer: Optimizer, trained: Mapping[str, Tensor], world: int) -> None:
        """`trained`: by name, in the layout's order; the optimizer has all of it. Changes the param groups."""
        self.optimizer, self.world = optimizer, world
        self.corrected = is_sgd(optimizer)
        place = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self.owned = [Own(name, parameter, place[id(parameter)]) for name, parameter in trained.items()]
        if self.corrected:
            for group in optimizer.param_groups:
                group.update(taken_from(group) | _ZERO)
        self.with_momentum = self.corrected and any(group["dgc_momentum"] for group in optimizer.param_groups)
        self.fresh = True
        _attached.add(optimizer)

    def take_buffers(self, u: Mapping[str, Tensor]) -> int:
        """Move momentum that the optimizer already has into u (views by name, which are changed); returns how many
        buffers. Sum of u = momentum of the sum; torch's buffer is without Nesterov's last factor, u has it."""
        moved = 0
        for own in self.owned:
            group = self.optimizer.param_groups[own.group]
            buffer = self.optimizer.state[own.parameter].pop("momentum_buffer", None)
            if buffer is not None and group["dgc_momentum"]:
                factor = group["dgc_momentum"] if group["dgc_nesterov"] else 1.0
                sign = -1.0 if group.get("maximize") else 1.0
                u[own.name].copy_(buffer).mul_(sign * factor / self.world)
                moved += 1
        self.fresh = self.fresh and not moved
        return moved

    def rules(self, scale: float, first: bool) -> list[Rule]:
        """One for each segment of the layout. `scale`: what the gradient is multiplied by. `first`: no step was
        applied before."""
        if not self.corrected:
            return [Rule(scale, 0.0, None)] * len(self.owned)
        made = []
        for group in self.optimizer.param_groups:
            momentum = group["dgc_momentum"]
            undamped = 1.0 if not momentum or (first and self.fresh) else 1.0 - float(group["dampening"])
            decay = group["dgc_weight_decay"] * (-1.0 if group["maximize"] else 1.0) / self.world
            rule = Momentum(momentum, group["dgc_nesterov"]) if self.with_momentum else None
            made.append(Rule(scale * undamped, decay * undamped, rule))
        return [made[own.group] for own in self.owned]

    def problem(self) -> UsageError | None:
        """What is wrong with the param groups, if anything: momentum or weight decay that would be applied twice."""
        if not self.corrected:
            return None
        for number, group in enumerate(self.optimizer.param_groups):
            for name, key in TAKEN.items():
                if key not in group:
                    return UsageError(
                        f"param group {number} of the optimizer is not as attach left it ('{key}' is gone): a state "
                        f"that was saved without DGC is to be loaded before attach, a param group added before it"
                    )
                if name != "nesterov" and group[name] != 0:
                    return UsageError(
                        f"{name} = {group[name]:g} in param group {number} would be applied twice: DGC has taken it "
                        f"over ({key} = {group[key]:g}) and set it to 0. Whoever sets it again (OneCycleLR: "
                        f"cycle_momentum=False; a loaded state: load it before attach) must not"
                    )
            if group["dgc_momentum"] and not self.with_momentum:
                return UsageError(
                    f"param group {number} has dgc_momentum = {group['dgc_momentum']:g}, but no group had a momentum "
                    f"when DGC was attached: set it before attach, or load the optimizer's state before it"
                )
        return None

    def momentum_of(self) -> dict[str, tuple[float, bool]]:
        """(momentum, nesterov) of every parameter, by name; empty without u."""
        groups = self.optimizer.param_groups if self.with_momentum else []
        return {
            own.name: (groups[own.group]["dgc_momentum"], groups[own.group]["dgc_nesterov"])
            for own in self.owned
            if groups
        }

    def say(self) -> str:
        """One line for the log: what acts where from now on."""
        kind = type(self.optimizer).__name__
        if not self.corrected:
            return (
                f"{kind} applies the sum of the messages: plain error feedback, no momentum correction (that is "
                f"SGD's); its own momentum and weight decay stay"
            )
        parts = []
        for number, group in enumerate(self.optimizer.param_groups):
            name = "Nesterov momentum" if group["dgc_nesterov"] else "momentum"
            parts.append(
                f"param group {number}: {name} {group['dgc_momentum']:g}, weight decay {group['dgc_weight_decay']:g}"
            )
        return f"taken over from {kind}, where they are 0 from now on: " + "; ".join(parts)

    def watch(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call these before and after every real step of the optimizer."""
        self.optimizer.register_step_pre_hook(lambda *_: before())
        self.optimizer.register_step_post_hook(lambda *_: after())
