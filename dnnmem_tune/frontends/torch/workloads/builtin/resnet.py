"""ResNet-50 with the stride in the 3x3 convolution (v1.5): 25,557,032 parameters.

Source: He et al., "Deep Residual Learning for Image Recognition", 2015; layout and counts as
``torchvision.models.resnet50``.
"""

from __future__ import annotations

import torch
from torch import nn

from dnnmem_tune.frontends.torch.workloads.builtin.batches import images_and_classes
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

_EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut."""

    def __init__(self, in_channels: int, channels: int, inner_channels: int, stride: int) -> None:
        super().__init__()
        out_channels = channels * _EXPANSION
        self.conv1 = nn.Conv2d(in_channels, inner_channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner_channels)
        self.conv2 = nn.Conv2d(inner_channels, inner_channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner_channels)
        self.conv3 = nn.Conv2d(inner_channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        identity = x if self.downsample is None else self.downsample(x)
        out += identity
        activated: torch.Tensor = self.relu(out)
        return activated


class ResNet(nn.Module):
    """A stem, four stages of bottlenecks, and a linear classifier."""

    def __init__(
        self, depths: tuple[int, ...], width: int, width_per_block: int, in_channels: int, num_classes: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        in_channels = width
        for stage, depth in enumerate(depths):
            channels, inner = width << stage, width_per_block << stage
            blocks = []
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(in_channels, channels, inner, stride))
                in_channels = channels * _EXPANSION
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(in_channels, num_classes)
        self.num_stages = len(depths)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.num_stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        logits: torch.Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def resnet(
    depths: tuple[int, ...] = (3, 4, 6, 3),
    width: int = 64,
    width_per_block: int = 64,
    in_channels: int = 3,
    num_classes: int = 1000,
) -> ResNet:
    """Return the network; ``depths=(3, 4, 23, 3)`` is ResNet-101, ``width_per_block=128`` the wide one."""
    return ResNet(depths, width, width_per_block, in_channels, num_classes)


RESNET50 = TrainingStep(
    model=resnet,
    inputs=images_and_classes,
    loss="cross_entropy",
    optimizer="sgd(lr=0.1, momentum=0.9, weight_decay=1e-4)",
    checkpoint_blocks=("Bottleneck",),
)
