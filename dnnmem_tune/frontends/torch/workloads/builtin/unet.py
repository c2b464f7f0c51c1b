"""U-Net with batch norm and padded convolutions: 31,037,698 parameters for two classes.

Source: Ronneberger et al., "U-Net", 2015; layout and counts as ``milesial/Pytorch-UNet`` with
``bilinear=False``, down to its padding of every upsampled map, which copies it even by zero pixels.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from dnnmem_tune.frontends.torch.workloads.builtin.batches import images_and_masks
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep


class DoubleConv(nn.Sequential):
    """Two 3x3 convolutions, each with batch norm and ReLU."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    """Doubles the image, and joins what the contracting path had at that size."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, channels, 2, stride=2)
        self.conv = DoubleConv(in_channels, channels)

    def forward(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        low = self.up(low)
        rows, columns = high.size(2) - low.size(2), high.size(3) - low.size(3)
        low = functional.pad(low, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        joined: torch.Tensor = self.conv(torch.cat([high, low], dim=1))
        return joined


class UNet(nn.Module):
    """A contracting and an expanding path with shortcuts between equal sizes."""

    def __init__(self, in_channels: int, num_classes: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.inc = DoubleConv(in_channels, width)
        self.downs = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(widths[level], widths[level + 1])) for level in range(depth)
        )
        self.ups = nn.ModuleList(Up(widths[level + 1], widths[level]) for level in reversed(range(depth)))
        self.outc = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [self.inc(x)]
        for down in self.downs:
            levels.append(down(levels[-1]))
        x = levels[-1]
        for up, level in zip(self.ups, reversed(levels[:-1]), strict=True):
            x = up(x, level)
        logits: torch.Tensor = self.outc(x)
        return logits


def unet(in_channels: int = 3, num_classes: int = 2, width: int = 64, depth: int = 4) -> UNet:
    """Return the network; ``width`` channels at full size, doubled at each of ``depth`` levels."""
    return UNet(in_channels, num_classes, width, depth)


UNET = TrainingStep(
    model=unet,
    inputs=images_and_masks,
    loss="cross_entropy",
    optimizer="rmsprop(lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True)",
    checkpoint_blocks=("DoubleConv",),
)
