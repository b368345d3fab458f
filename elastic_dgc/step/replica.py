"""One worker's replica: the model, shared state, and the owned state of the virtual workers it hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from elastic_dgc.compression.accumulate import Workspace
from elastic_dgc.compression.layout import Layout
from elastic_dgc.errors import UsageError
from elastic_dgc.precision.finite import first_non_finite, joint_norm
from elastic_dgc.step.apply import make_applier
from elastic_dgc.step.settings import StepSettings
from elastic_dgc.step.state import Counters, Exported, OwnedState, copy_all
from elastic_dgc.step.total import Total

LossFunction = Callable[[nn.Module, Any], "Tensor | tuple[Tensor, int]"]


class Replica:
    """What a worker holds between attempts. `hosted` names the virtual workers whose owned state lives here.

    The model's parameters are fp32; those with `requires_grad` are trained and make up the layout: they are made views
    of one flat vector, `weights`. Gradients are moved into the hosted virtual worker's other v as they arrive, all but
    those of the last: a worker has one gradient in memory however many it hosts, and it is read where it is. `total` is
    where the sum of an attempt is added up.

    `residual_device` is where u and v live, by default where the model is. Elsewhere (a GPU that is short of memory)
    there is one gradient beside the model, copied over after each backward pass, and compression runs there.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: StepSettings,
        hosted: Iterable[int],
        device: torch.device | str = "cpu",
        residual_device: torch.device | str | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.residual_device = torch.device(residual_device if residual_device is not None else device)
        self.model = model.to(self.device)
        self.settings = settings
        self.parameters: dict[str, Tensor] = dict(model.named_parameters())
        for name, parameter in self.parameters.items():
            if parameter.dtype != torch.float32:
                raise UsageError(
                    f"parameter '{name}' is {parameter.dtype}: parameters must be float32; --precision computes in half"
                )
        self.trained = {name: p for name, p in self.parameters.items() if p.requires_grad and p.numel()}
        if not self.trained:
            raise UsageError("the model has no parameter to train: all are frozen, or there are none")
        shape = settings.compression
        self.layout = Layout.of(self.trained.items(), shape.min_numel, shape.small_density, shape.small_floor)
        self.weights = torch.empty(self.layout.numel, device=self.device)
        for name, view in self.layout.views(self.weights).items():
            view.copy_(self.trained[name].detach())
            self.trained[name].data = view
        # Where the buffers are: to walk through the modules takes longer than to copy what is found there.
        self._places = [(name, *_module_of(model, name)) for name, _ in model.named_buffers()]
        # By design, as an attention mask of -inf is: no sign of trouble.
        self._infinite = {name for name, b in self.model_buffers().items() if first_non_finite({name: b}) is not None}
        self.total = Total(self.layout.numel, self.device)
        self.workspace = Workspace(self.residual_device)
        staged = residual_device is not None and self.residual_device != self.device
        self._staging = self.layout.views(torch.zeros_like(self.weights)) if staged else None
        self._arriving: dict[str, Tensor] | None = None
        self._norms: dict[str, Tensor] = {}  # of the gradients that have arrived
        self._keeping = False
        self._kept_of = -1
        self.kept: dict[str, Tensor] = {}  # the gradients of the last virtual worker, or none of them
        self.full_steps = True  # whether the last step counted what full shares count
        for name, parameter in self.trained.items():
            parameter.register_post_accumulate_grad_hook(partial(self._arrive, name))
        self.applier = make_applier(settings.optimizer, self.layout, self.weights, self.trained)
        self.counters = Counters(loss_scale=settings.loss_scale.initial)
        self.owned: dict[int, OwnedState] = {}
        for k in hosted:
            self.host(k)

    def host(self, virtual_worker: int) -> OwnedState:
        """Make room for a virtual worker: u and v zero, buffers as the model has them now."""
        buffers = self.model_buffers()
        momentum = self.settings.momentum is not None
        one = OwnedState(virtual_worker, self.layout, buffers, momentum, self.residual_device)
        self.owned[virtual_worker] = one
        return one

    @property
    def last(self) -> int:
        """The virtual worker that is computed last."""
        return max(self.owned, default=-1)

    def gradient(self, virtual_worker: int) -> dict[str, Tensor]:
        """The gradient of this virtual worker by parameter, between `collect` and `release` or the accumulation."""
        return self.kept_of(virtual_worker) or self.owned[virtual_worker].other_v_views

    def kept_of(self, virtual_worker: int) -> dict[str, Tensor]:
        """This virtual worker's gradients by parameter, if they were not moved into its other v; else nothing."""
        return self.kept if virtual_worker == self._kept_of else {}

    def attach(self, virtual_worker: int) -> None:
        """Let backward write the gradient of this virtual worker. What was in its other v is gone."""
        self._arriving = self._staging if self._staging is not None else self.owned[virtual_worker].other_v_views
        self._keeping = virtual_worker == self.last and self._staging is None
        self._kept_of = virtual_worker
        self._norms.clear()
        self.release()
        for parameter in self.trained.values():
            parameter.grad = None

    def _arrive(self, name: str, parameter: Tensor) -> None:
        """A parameter's gradient is there. It is moved while it is in the cache, and its memory freed; or, if it is of
        the last virtual worker, it is left where it is, unless `collect` finds that not all of them could be."""
        gradient = parameter.grad
        if self._arriving is None or gradient is None:
            return
        if self._keeping and gradient.is_contiguous() and (name in self.kept or name not in self._norms):
            self.kept[name] = gradient  # autograd adds those of later micro-batches to it
            self._norms[name] = joint_norm(gradient)
            return
        self._move(name, gradient.to_dense() if gradient.is_sparse else gradient)
        self._norms[name] = joint_norm(self._arriving[name])
        parameter.grad = None

    def _move(self, name: str, gradient: Tensor) -> None:
        assert self._arriving is not None
        if name in self._norms:  # of an earlier micro-batch
            self._arriving[name].add_(gradient)
        else:
            self._arriving[name].copy_(gradient)

    @torch.no_grad()
    def collect(self, virtual_worker: int) -> Tensor:
        """After the last backward: the gradient is complete, zero where none arrived. Returns its joint norm, a 0-dim
        tensor: not finite if any element is not, or if it overflows."""
        assert self._arriving is not None
        for name, parameter in self.trained.items():
            if name not in self.kept:
                self._arrive(name, parameter)  # one that was set by hand, without autograd
            if name not in self._norms:
                self._arriving[name].zero_()
            parameter.grad = None
        if self.kept.keys() != self.trained.keys():
            for name, gradient in self.kept.items():
                self._arriving[name].copy_(gradient)
            self.kept.clear()
        if self._staging is not None:
            for name, view in self.owned[virtual_worker].other_v_views.items():
                view.copy_(self._staging[name])
        self._arriving = None
        norms = [self._norms[name] for name in self.trained if name in self._norms]
        return joint_norm(torch.stack(norms)) if norms else torch.zeros((), device=self.device)

    def release(self) -> None:
        """The gradient was accumulated: free what was kept of it."""
        self.kept.clear()

    @torch.no_grad()
    def settle(self) -> None:
        """Move what was kept of a gradient to where the others are: another virtual worker's is to be computed."""
        if self.kept:
            into = self.owned[self._kept_of].other_v_views
            for name, gradient in self.kept.items():
                into[name].copy_(gradient)
            self.kept.clear()

    def weights_for_decay(self) -> Tensor:
        """The weights where u and v are; what weight decay reads."""
        return self.weights.to(self.residual_device)

    def model_buffers(self) -> dict[str, Tensor]:
        """The model's buffers as they are now; forward may have put other tensors in their places."""
        return {name: getattr(module, key) for name, module, key in self._places}

    def watched(self, tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
        """Those that have to be finite, of tensors among which buffers have this prefix: without the buffers that were
        not finite in the model at the start."""
        by_design = {prefix + name for name in self._infinite}
        return {name: value for name, value in tensors.items() if name not in by_design}

    def first_bad(self, tensors: Mapping[str, Tensor], prefix: str = "") -> str | None:
        """As `first_non_finite`, of the watched ones."""
        return first_non_finite(self.watched(tensors, prefix))

    @torch.no_grad()
    def use_buffers(self, buffers: dict[str, Tensor]) -> None:
        """Copy these buffers into the model."""
        _copy(self.model_buffers(), buffers)

    @torch.no_grad()
    def keep_buffers(self, virtual_worker: int) -> None:
        """Copy the model's buffers, which forward changed, into this virtual worker's other ones."""
        _copy(self.owned[virtual_worker].other_buffers, self.model_buffers())

    def export_shared(self) -> Exported:
        """Shared state: tensors `parameter/<name>` and `optimizer/<parameter>/<key>`, and the counters."""
        tensors = {f"parameter/{name}": p.detach() for name, p in self.parameters.items()}
        tensors |= {f"optimizer/{name}": value for name, value in self.applier.state().items()}
        return tensors, self.counters.export()

    def load_shared(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Take over what `export_shared` gave. Raises `MessageError` where tensors do not match the model."""
        weights = {n.removeprefix("parameter/"): t for n, t in tensors.items() if n.startswith("parameter/")}
        copy_all({name: p.detach() for name, p in self.parameters.items()}, weights, "the parameters")
        prefix = "optimizer/"
        state = {n.removeprefix(prefix): t.to(self.device) for n, t in tensors.items() if n.startswith(prefix)}
        self.applier.load(state)
        self.counters = Counters.load(values)


def _module_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, key = name.rpartition(".")
    return model.get_submodule(path), key


def _copy(into: dict[str, Tensor], buffers: dict[str, Tensor]) -> None:
    """Copy buffers by name, with one call: there may be hundreds, of few bytes each."""
    if into:
        torch._foreach_copy_(list(into.values()), [buffers[name] for name in into])
