"""VGG-16 without batch norm: 138,357,544 parameters.

Source: Simonyan and Zisserman, "Very Deep Convolutional Networks", 2014, configuration D; layout
and counts as ``torchvision.models.vgg16``.
"""

from __future__ import annotations

import torch
from torch import nn

from dnnmem_tune.frontends.torch.workloads.builtin.batches import images_and_classes
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

_POOLED = 7
"""Side of the feature map that the classifier takes."""


class Stage(nn.Sequential):
    """3x3 convolutions of one width, and a pooling that halves the image."""

    def __init__(self, in_channels: int, channels: int, depth: int) -> None:
        layers: list[nn.Module] = []
        for index in range(depth):
            layers += [
                nn.Conv2d(channels if index else in_channels, channels, 3, padding=1),
                nn.ReLU(inplace=True),
            ]
        super().__init__(*layers, nn.MaxPool2d(2))


class VGG(nn.Module):
    """Five stages and three linear layers."""

    def __init__(
        self, depths: tuple[int, ...], width: int, hidden: int, in_channels: int, num_classes: int, dropout: float
    ) -> None:
        super().__init__()
        widths = [min(width << stage, width * 8) for stage in range(len(depths))]
        self.features = nn.Sequential(
            *(Stage(*sizes) for sizes in zip([in_channels, *widths], widths, depths, strict=False))
        )
        self.avgpool = nn.AdaptiveAvgPool2d(_POOLED)
        self.classifier = nn.Sequential(
            nn.Linear(widths[-1] * _POOLED * _POOLED, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.avgpool(self.features(x))
        logits: torch.Tensor = self.classifier(torch.flatten(x, 1))
        return logits


def vgg(
    depths: tuple[int, ...] = (2, 2, 3, 3, 3),
    width: int = 64,
    hidden: int = 4096,
    in_channels: int = 3,
    num_classes: int = 1000,
    dropout: float = 0.5,
) -> VGG:
    """Return the network; ``depths=(2, 2, 4, 4, 4)`` is VGG-19."""
    return VGG(depths, width, hidden, in_channels, num_classes, dropout)


VGG16 = TrainingStep(
    model=vgg,
    inputs=images_and_classes,
    loss="cross_entropy",
    optimizer="sgd(lr=0.01, momentum=0.9, weight_decay=5e-4)",
    checkpoint_blocks=("Stage",),
)
