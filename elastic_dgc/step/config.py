"""The optimizer that applies the sum, and its learning rate as a function of the applied steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from elastic_dgc.config import Config, nearest
from elastic_dgc.errors import UsageError

if TYPE_CHECKING:  # settings and help need no torch
    import torch

_UNSUITED = {
    "lbfgs": "it needs a closure",
    "muon": "it takes parameters of two dimensions only",
    "rprop": "it looks at the signs of single gradients, and takes no weight decay",
    "sparseadam": "it needs sparse gradients",
}


def make_torch_optimizer(config: OptimizerConfig, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer of `torch.optim` that the settings name. Raises `UsageError`: unknown name (with the nearest),
    unsuited optimizer, arguments that it does not take."""
    import torch

    known: dict[str, Any] = {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
    }
    if config.name in _UNSUITED:
        raise UsageError(f"optimizer.name = '{config.name}' cannot be used: {_UNSUITED[config.name]}")
    if config.name not in known:
        usable = {"sgd", *known} - _UNSUITED.keys()
        raise UsageError(f"optimizer.name = '{config.name}' is unknown{nearest(config.name, usable)}")
    try:
        made: torch.optim.Optimizer = known[config.name](
            parameters, lr=config.lr, weight_decay=config.weight_decay, **config.options
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer.options = {config.options} do not suit '{config.name}': {error}") from None
    return made


class OptimizerConfig(Config):
    """SGD with momentum correction, or any optimizer of `torch.optim` by name, with plain error feedback.

    `sgd`: momentum, Nesterov and weight decay act on the local gradient before compression, and the sum is applied by
    plain SGD (Lin et al. section 3.2). Any other name: no momentum correction (it is SGD's); the named optimizer
    applies the sum, `weight_decay` and `options` are its own arguments, its state is shared by all workers.
    """

    name: str = Field("sgd", description="sgd, or a class of torch.optim such as adamw")
    lr: float = Field(0.1, gt=0, description="peak learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd; other optimizers take theirs in options")
    nesterov: bool = Field(False, description="Nesterov's momentum (sgd only)")
    weight_decay: float = Field(0.0, ge=0, description="sgd: L2 on the local gradient; others: their own argument")
    decay_vectors: bool = Field(True, description="weight decay on biases and norm layers too (sgd only)")
    options: dict[str, Any] = Field(default_factory=dict, description="further arguments of a torch optimizer")

    @field_validator("name")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()

    @model_validator(mode="after")
    def _fits(self) -> OptimizerConfig:
        if self.name == "sgd" and self.options:
            raise ValueError(
                f"options = {self.options}: sgd takes none, its fields are momentum, nesterov, weight_decay"
            )
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov = True needs a momentum above 0")
        if self.nesterov and self.name != "sgd":
            raise ValueError(
                f"nesterov = True is for sgd, not for {self.name!r}: give it in options if the optimizer takes it"
            )
        if self.name != "sgd":
            import torch

            make_torch_optimizer(self, [torch.zeros(2, 2, requires_grad=True)])  # its errors belong here, at the start
        return self

    @property
    def momentum_correction(self) -> bool:
        return self.name == "sgd"


class ScheduleConfig(Config):
    """The learning rate over a run, as a factor of the optimizer's `lr`. Positions are in epochs, fractions allowed."""

    kind: Literal["constant", "cosine", "step", "linear"] = Field("cosine", description="course of the learning rate")
    warmup_epochs: float = Field(0.0, ge=0, description="linear warm-up")
    warmup_start: float = Field(0.1, ge=0, le=1, description="factor at which the warm-up starts")
    milestones: tuple[float, ...] = Field((), description="epochs at which `step` multiplies by gamma")
    gamma: float = Field(0.1, gt=0, description="factor of `step` at each milestone")
    final: float = Field(0.0, ge=0, le=1, description="factor at which cosine and linear end")

    def factor(self, applied: int, steps_per_epoch: int, epochs: float) -> float:
        """The factor for the step after `applied` applied steps, in a run of `epochs` epochs. Pure."""
        epoch = applied / steps_per_epoch
        if epoch < self.warmup_epochs:
            return self.warmup_start + (1 - self.warmup_start) * epoch / self.warmup_epochs
        if self.kind == "step":
            return self.gamma ** sum(epoch >= milestone for milestone in self.milestones)
        span = max(epochs - self.warmup_epochs, 1e-9)
        progress = min(1.0, (epoch - self.warmup_epochs) / span)
        if self.kind == "cosine":
            return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress))
        if self.kind == "linear":
            return self.final + (1 - self.final) * (1 - progress)
        return 1.0
