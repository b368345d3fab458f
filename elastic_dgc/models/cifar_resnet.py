"""The CIFAR ResNets of He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016), section 4.2.

6n+2 layers: a 3x3 convolution, three stages of n basic blocks with 16, 32 and 64 channels, global mean, linear.
Shortcuts are the paper's option A: where a stage halves the map, the shortcut takes every second pixel and pads the
new channels with zeros, so it has no parameters. ResNet-20 has 0.27 M parameters, ResNet-110 has 1.7 M.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around an option A shortcut.

    `forward`: float32[n, c_in, h, w] -> float32[n, c_out, h/stride, w/stride].
    """

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.stride = stride
        self.new_channels = c_out - c_in

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.stride != 1 or self.new_channels:
            x = x[:, :, :: self.stride, :: self.stride]
            before = self.new_channels // 2
            x = F.pad(x, (0, 0, 0, 0, before, self.new_channels - before))
        return F.relu(out + x)


class CifarResNet(nn.Module):
    """`depth` = 6n+2 layers. `forward`: float32[n, channels, height, width] -> logits float32[n, classes].

    Made for 32x32, works for any size of at least 4. Raises ValueError for a depth that is not 6n+2.
    """

    def __init__(self, depth: int, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth = {depth}: a CIFAR ResNet has 6n+2 layers, such as 20, 56 or 110")
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.fc = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _stage(c_in: int, c_out: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [BasicBlock(c_out, c_out, 1) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(c_in, c_out, stride), *rest)
