"""What attach refuses, in one line each, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elastic_dgc.errors import UsageError


def in_words(given: Any) -> str:
    """What was given, for an error: 'None', 'True', '3', 'the class DGC itself', 'an object of class Net'."""
    if isinstance(given, type):
        return f"the class {given.__name__} itself"
    if given is None or isinstance(given, bool | int | float | str):
        text = repr(given)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"an object of class {type(given).__name__}"


def check_kind(ddp: Any) -> DistributedDataParallel:
    """Raises `UsageError` for all that is not a DDP model."""
    if not isinstance(ddp, DistributedDataParallel):
        inner = getattr(ddp, "_orig_mod", None)
        mend = "attach to the DDP model before torch.compile" if inner is not None else "wrap it in it first"
        if "fsdp" in type(ddp).__module__.lower() or "FSDP" in type(ddp).__name__:
            mend = "FSDP shards gradients and has no place for a residual of all of them"
        raise UsageError(f"model is {in_words(ddp)}; attach needs torch.nn.parallel.DistributedDataParallel: {mend}")
    return ddp


def check_model(ddp: DistributedDataParallel) -> None:
    """Raises `UsageError` where a hook cannot do this on a DDP model."""
    backend = str(dist.get_backend_config(ddp.process_group))
    if "cpu:" not in backend and not dist.is_gloo_available():
        raise UsageError(
            f"DDP's backend is {backend}, and messages are bytes on the CPU, which go by gloo: torch "
            f"{torch.__version__} was built without it; install one from pytorch.org"
        )
    if ddp.mixed_precision is not None:
        raise UsageError(
            "DDP's mixed_precision uses the communication hook itself: leave it out and use torch.autocast"
        )
    registered = [getattr(hook, "__qualname__", str(hook)) for hook, _ in ddp._comm_hooks]
    builtin = ddp._get_ddp_logging_data().get("comm_hook")
    if registered or builtin:
        raise UsageError(
            f"this DDP model has a communication hook already ({registered[0] if registered else builtin}), and DDP "
            f"takes one: attach to a DDP model without"
        )
    if getattr(ddp, "_delay_all_reduce_params", None):
        raise UsageError("DDP with delay_all_reduce_named_params reduces those on its own: leave it out")
    for name, module in ddp.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise UsageError(f"{name} has sparse gradients, which DGC does not take: use sparse=False")


def trained_parameters(ddp: DistributedDataParallel) -> dict[str, Tensor]:
    """The parameters whose gradients DDP reduces, by their name in `ddp.module`, in order of name. Raises
    `UsageError`: none, not fp32, not all on one device, memory with holes."""
    ignored: set[str] = getattr(ddp, "parameters_to_ignore", set())
    named = sorted(
        (name, parameter)
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ignored and parameter.numel()
    )
    if not named:
        raise UsageError("the model has no parameter that is trained: all are frozen")
    for name, parameter in named:
        if parameter.dtype != torch.float32:
            raise UsageError(
                f"parameter {name} is {str(parameter.dtype).removeprefix('torch.')}; keep parameters in float32 "
                f"and use torch.autocast"
            )
        if parameter.device != named[0][1].device:
            raise UsageError(
                f"parameters are on {named[0][1].device} and on {parameter.device} ({name}); all must be on one device"
            )
        if not _whole_memory(parameter):
            raise UsageError(f"the memory of parameter {name} has holes or overlaps: make it contiguous() before DDP")
    return dict(named)


def not_trained(ddp: DistributedDataParallel, trained: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """The frozen parameters, with their names: those that DDP would have to reduce if they were not."""
    ignored: set[str] = getattr(ddp, "parameters_to_ignore", set())
    return [
        (name, parameter)
        for name, parameter in ddp.module.named_parameters()
        if name not in trained and name not in ignored and parameter.numel()
    ]


def check_frozen(frozen: Sequence[tuple[str, Tensor]]) -> None:
    """Raises `UsageError` if one of them is trained by now: nobody would exchange its gradient."""
    for name, parameter in frozen:
        if parameter.requires_grad:
            raise UsageError(
                f"{name} was unfrozen after attach, and its gradient is not exchanged, so ranks would drift apart: "
                f"make DDP and optimizer and attach anew, after the last requires_grad_()"
            )


def _whole_memory(tensor: Tensor) -> bool:
    """Whether its elements, in some order of the dimensions, fill a stretch of memory."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def check_scaler(scaler: Any) -> Any:
    """The scaler, or None where there is none or it is disabled. Raises `UsageError` for what is no GradScaler."""
    if scaler is None or scaler is False:
        return None
    asked = ("get_scale", "is_enabled", "unscale_")
    if isinstance(scaler, type) or not all(callable(getattr(scaler, name, None)) for name in asked):
        raise UsageError(
            f"scaler is {in_words(scaler)}; attach needs the torch.amp.GradScaler that scales the loss, or False where "
            f"none does"
        )
    return scaler if scaler.is_enabled() else None
