"""The networks that are measured, by name: ours and torchvision's."""

from __future__ import annotations

import torch
from torch import nn

from elastic_dgc.models import registry

OURS, IMAGENET = 10, 1000


def classes_of(name: str) -> int:
    """1000 for torchvision's (ImageNet), 10 for ours (CIFAR-10, digits). Raises `UsageError` for an unknown name."""
    registry.check_name(name)
    return OURS if registry.is_ours(name) else IMAGENET


def build(name: str, image_size: int | None = None, device: str = "cpu") -> nn.Module:
    """The network with random weights; on device 'meta' without any memory for them."""
    with torch.device(device):
        return registry.build(name, classes_of(name), registry.default_channels(name), image_size)
