"""APPLY: the sum meets the weights. Proposed first and checked, so that nothing non-finite is ever written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from elastic_dgc.compression.layout import Layout
from elastic_dgc.errors import UsageError
from elastic_dgc.precision.finite import all_finite, first_non_finite, joint_norm
from elastic_dgc.step.config import OptimizerConfig, make_torch_optimizer
from elastic_dgc.step.total import Total


class Applier(ABC):
    """Applies the sum of all messages to the parameters, the same on every worker."""

    @abstractmethod
    def apply(self, total: Total, lr: float) -> str | None:
        """Write the step for a sum and return None; or, if it would make a parameter or a state value
        non-finite, leave everything bitwise as it was and return which ('name (3 of 64 values not finite)')."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The optimizer's state as tensors, by `<parameter>/<key>`."""

    @abstractmethod
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""


class PlainSGD(Applier):
    """w <- w - lr * sum. Plain, because the momentum is already inside the messages (Paddle#20758 applied it twice)."""

    def __init__(self, layout: Layout, weights: Tensor) -> None:
        self._layout, self._weights = layout, weights

    @torch.no_grad()
    def apply(self, total: Total, lr: float) -> str | None:
        at = total.touched
        if at is None:
            proposed = torch.sub(self._weights, total.flat, alpha=lr)
        else:  # a position that two messages touch is written twice, with the same value
            proposed = torch.sub(self._weights.index_select(0, at), total.flat.index_select(0, at), alpha=lr)
        # One pass tells; only a norm that is not finite, which large finite weights may have too, is worth a second.
        if proposed.numel() and not torch.isfinite(joint_norm(proposed)):
            whole = proposed if at is None else self._weights.clone()
            if at is not None:
                whole[at] = proposed
            bad = first_non_finite(self._layout.views(whole))
            if bad is not None:
                return bad
        if at is None:
            self._weights.copy_(proposed)
        else:
            self._weights.index_copy_(0, at, proposed)
        return None

    def state(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        if tensors:
            raise UsageError(f"the checkpoint holds an optimizer's state ({next(iter(tensors))}); sgd has none")


class TorchOptimizer(Applier):
    """Any optimizer of `torch.optim`: it sees the sum as the gradient. Its state is shared."""

    def __init__(self, config: OptimizerConfig, layout: Layout, parameters: Mapping[str, Tensor]) -> None:
        self._layout = layout
        self._parameters = dict(sorted(parameters.items()))
        self._optimizer = make_torch_optimizer(config, list(self._parameters.values()))

    @torch.no_grad()
    def apply(self, total: Total, lr: float) -> str | None:
        gradients = self._layout.views(total.flat)
        weights = {name: p.clone() for name, p in self._parameters.items()}
        before = {name: value.clone() for name, value in self.state().items()}
        for name, parameter in self._parameters.items():
            parameter.grad = gradients[name]
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        after = {f"state {name}": value for name, value in self.state().items()}
        after |= {name: p.detach() for name, p in self._parameters.items()}
        if all_finite(list(after.values())):
            return None
        bad = first_non_finite(after)
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])
        self.load(before)
        return bad

    def state(self) -> dict[str, Tensor]:
        found = {}
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    found[f"{name}/{key}"] = value
                elif value is not None:
                    raise UsageError(
                        f"optimizer {type(self._optimizer).__name__} keeps '{key}' as {type(value).__name__}, "
                        f"which cannot be checkpointed; choose another, or its options that keep tensors"
                    )
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        per_parameter: dict[str, dict[str, Any]] = {name: {} for name in self._parameters}
        for full, value in tensors.items():
            name, key = full.rsplit("/", 1)
            per_parameter[name][key] = value.clone()
        self._optimizer.state.clear()
        for name, parameter in self._parameters.items():
            if per_parameter[name]:
                self._optimizer.state[parameter] = per_parameter[name]


def make_applier(config: OptimizerConfig, layout: Layout, weights: Tensor, parameters: Mapping[str, Tensor]) -> Applier:
    """The applier for these settings. `weights` [numel] is the memory of the `parameters`, in the layout's order."""
    return PlainSGD(layout, weights) if config.name == "sgd" else TorchOptimizer(config, layout, parameters)
