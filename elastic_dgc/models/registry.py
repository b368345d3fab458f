"""Image classification models by name: the digits network, the CIFAR ResNets and everything torchvision has.

torchvision is imported on first use only, so that a run of one of our own networks starts quickly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from elastic_dgc.errors import UsageError
from elastic_dgc.models.cifar_resnet import CifarResNet
from elastic_dgc.models.digits import DigitsNet
from elastic_dgc.models.names import check_channels, check_name, default_channels, is_ours, known

__all__ = ["build", "check_channels", "check_name", "check_size", "default_channels", "is_ours", "known"]

_OWN: dict[str, Callable[..., nn.Module]] = {
    "digits": DigitsNet,
    "resnet20": partial(CifarResNet, 20),
    "resnet56": partial(CifarResNet, 56),
    "resnet110": partial(CifarResNet, 110),
}


def build(name: str, classes: int, channels: int = 3, image_size: int | None = None, **options: Any) -> nn.Module:
    """A freshly initialised float32 model on the current default device, drawing from torch's global generator.

    `forward` takes float32[n, channels, height, width] and returns logits float32[n, classes], in training mode too
    (auxiliary heads are left out). `image_size` matters to models whose parameters depend on it (vit_*, maxvit_t).
    `options` go to the model's constructor. Raises `UsageError` for an unknown name or what the model does not take.
    """
    check_name(name)
    if classes < 1:
        raise UsageError(f"classes = {classes}: a model needs at least 1 class")
    try:
        if name in _OWN:
            return _OWN[name](classes=classes, channels=channels, **options)
        return _torchvision(name, classes, channels, image_size, options)
    except (TypeError, ValueError, AssertionError) as error:  # an option that is unknown, a size that does not fit
        size = "" if image_size is None else f" for images of {image_size} pixels, usual is {_usual(name)}"
        raise UsageError(f"model = {name!r} cannot be built{size}: {_reason(error)}") from error


def _torchvision(name: str, classes: int, channels: int, image_size: int | None, options: dict[str, Any]) -> nn.Module:
    check_channels(name, channels)
    import torchvision.models

    if name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True, **options}
    if image_size is not None and name.startswith("vit_"):
        options = {"image_size": image_size, **options}
    if image_size is not None and name.startswith("maxvit"):
        options = {"input_size": (image_size, image_size), **options}
    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes, **options)
    return model


def check_size(model: nn.Module, name: str, channels: int, height: int, width: int) -> None:
    """Raises `UsageError` if `model`, built as `name`, cannot be trained on images of `height` x `width` pixels.

    Two images go through in training mode with all tensors replaced by ones without data (torch's meta device): no
    arithmetic, nothing in the model changes, no random number is drawn.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    without_data = {key: torch.empty_like(value, device="meta") for key, value in tensors}
    images = torch.empty(2, channels, height, width, device="meta")
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.func.functional_call(model, without_data, (images,))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise UsageError(
            f"model = {name!r} cannot take images of {width}x{height} pixels ({_reason(error)}); "
            f"set image_size to {_usual(name)}"
        ) from error


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".!")


def _usual(name: str) -> str:
    if name in _OWN:
        return "8 or more"
    import torchvision.models

    weights = next(iter(torchvision.models.get_model_weights(name)))
    smallest = max(weights.meta["min_size"])
    return f"{smallest} or more" if smallest > 1 else "224"
