"""A small convolutional network for the embedded handwritten digits (8x8, gray).

Small enough that a whole run takes seconds on one core, large enough (75 k parameters, four tensors of two or more
dimensions) that compression has something to select from. Strides instead of pooling: every layer has a deterministic
backward pass on GPUs too, and the mean over the last feature map lets the network take images of any size.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn


class DigitsNet(nn.Module):
    """conv3x3(c->32), conv3x3(32->64, stride 2), conv3x3(64->96), each with BatchNorm and ReLU; mean; linear.

    `forward` takes float32[n, channels, height, width], normalised, and returns logits float32[n, classes].
    """

    def __init__(self, classes: int = 10, channels: int = 1) -> None:
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 32, 3, padding=1, bias=False),
                norm1=nn.BatchNorm2d(32),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False),
                norm2=nn.BatchNorm2d(64),
                relu2=nn.ReLU(),
                conv3=nn.Conv2d(64, 96, 3, padding=1, bias=False),
                norm3=nn.BatchNorm2d(96),
                relu3=nn.ReLU(),
            )
        )
        self.head = nn.Linear(96, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.features(images)
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits
