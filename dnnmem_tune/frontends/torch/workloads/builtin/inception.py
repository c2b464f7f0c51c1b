"""Inception v3 with its auxiliary classifier: 27,161,264 parameters.

Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015; layout
and counts as ``torchvision.models.inception_v3``. The loss counts the auxiliary classifier at 0.4,
as torchvision's fine-tuning tutorial does.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from dnnmem_tune.frontends.torch.workloads.builtin.batches import Batch, images_and_classes
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

_AUXILIARY_WEIGHT = 0.4


class ConvBlock(nn.Module):
    """Convolution, batch norm and ReLU."""

    def __init__(
        self,
        in_channels: int,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(channels, eps=0.001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.bn(self.conv(x)), inplace=True)


class Branches(nn.Module):
    """Branches over one input, concatenated by channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Mixed(Branches):
    """One inception block."""


class Auxiliary(nn.Module):
    """The classifier halfway, which helps the early layers to learn."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv0 = ConvBlock(in_channels, 128, 1)
        self.conv1 = ConvBlock(128, 768, 5)
        self.fc = nn.Linear(768, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.avg_pool2d(x, kernel_size=5, stride=3)
        x = functional.adaptive_avg_pool2d(self.conv1(self.conv0(x)), 1)
        logits: torch.Tensor = self.fc(torch.flatten(x, 1))
        return logits


class InceptionV3(nn.Module):
    """Stem, eleven mixed blocks, and the two classifiers."""

    def __init__(self, in_channels: int, num_classes: int, dropout: float, aux_logits: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvBlock(in_channels, 32, 3, stride=2), ConvBlock(32, 32, 3), ConvBlock(32, 64, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            ConvBlock(64, 80, 1), ConvBlock(80, 192, 3),
            nn.MaxPool2d(3, stride=2),
        )  # fmt: skip
        self.blocks = nn.Sequential(
            _mixed_35(192, 32), _mixed_35(256, 64), _mixed_35(288, 64),
            _reduce_to_17(288),
            _mixed_17(128), _mixed_17(160), _mixed_17(160), _mixed_17(192),
        )  # fmt: skip
        self.auxiliary = Auxiliary(768, num_classes) if aux_logits else None
        self.last_blocks = nn.Sequential(_reduce_to_8(), _mixed_8(1280), _mixed_8(2048))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(2048, num_classes)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = self.blocks(self.stem(x))
        auxiliary = self.auxiliary(x) if self.auxiliary is not None and self.training else None
        x = self.dropout(self.avgpool(self.last_blocks(x)))
        return self.fc(torch.flatten(x, 1)), auxiliary


def _pooled(projection: nn.Module) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), projection)


def _mixed_35(channels: int, pool_features: int) -> Mixed:
    return Mixed(
        ConvBlock(channels, 64, 1),
        nn.Sequential(ConvBlock(channels, 48, 1), ConvBlock(48, 64, 5, padding=2)),
        nn.Sequential(
            ConvBlock(channels, 64, 1), ConvBlock(64, 96, 3, padding=1), ConvBlock(96, 96, 3, padding=1)
        ),
        _pooled(ConvBlock(channels, pool_features, 1)),
    )


def _reduce_to_17(channels: int) -> Mixed:
    return Mixed(
        ConvBlock(channels, 384, 3, stride=2),
        nn.Sequential(ConvBlock(channels, 64, 1), ConvBlock(64, 96, 3, padding=1), ConvBlock(96, 96, 3, stride=2)),
        nn.MaxPool2d(3, stride=2),
    )


def _mixed_17(inner: int) -> Mixed:
    row = partial(ConvBlock, kernel=(1, 7), padding=(0, 3))
    column = partial(ConvBlock, kernel=(7, 1), padding=(3, 0))
    return Mixed(
        ConvBlock(768, 192, 1),
        nn.Sequential(ConvBlock(768, inner, 1), row(inner, inner), column(inner, 192)),
        nn.Sequential(
            ConvBlock(768, inner, 1),
            column(inner, inner),
            row(inner, inner),
            column(inner, inner),
            row(inner, 192),
        ),
        _pooled(ConvBlock(768, 192, 1)),
    )


def _reduce_to_8() -> Mixed:
    row, column = ConvBlock(192, 192, (1, 7), padding=(0, 3)), ConvBlock(192, 192, (7, 1), padding=(3, 0))
    return Mixed(
        nn.Sequential(ConvBlock(768, 192, 1), ConvBlock(192, 320, 3, stride=2)),
        nn.Sequential(ConvBlock(768, 192, 1), row, column, ConvBlock(192, 192, 3, stride=2)),
        nn.MaxPool2d(3, stride=2),
    )


def _mixed_8(channels: int) -> Mixed:
    def fork() -> Branches:
        return Branches(ConvBlock(384, 384, (1, 3), padding=(0, 1)), ConvBlock(384, 384, (3, 1), padding=(1, 0)))

    return Mixed(
        ConvBlock(channels, 320, 1),
        nn.Sequential(ConvBlock(channels, 384, 1), fork()),
        nn.Sequential(ConvBlock(channels, 448, 1), ConvBlock(448, 384, 3, padding=1), fork()),
        _pooled(ConvBlock(channels, 192, 1)),
    )


def inception_v3(
    in_channels: int = 3, num_classes: int = 1000, dropout: float = 0.5, aux_logits: bool = True
) -> InceptionV3:
    """Return the network; the auxiliary classifier needs images of about 299 pixels, the rest 75."""
    return InceptionV3(in_channels, num_classes, dropout, aux_logits)


def images(batch_size: int, image_size: int = 299, in_channels: int = 3, num_classes: int = 1000) -> Batch:
    """Return images of the size the architecture is made for, and the class of each."""
    return images_and_classes(batch_size, image_size, in_channels, num_classes)


def loss(outputs: tuple[torch.Tensor, torch.Tensor | None], targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of the classifier, plus that of the auxiliary one where it is used."""
    logits, auxiliary = outputs
    main = functional.cross_entropy(logits, targets)
    return main if auxiliary is None else main + _AUXILIARY_WEIGHT * functional.cross_entropy(auxiliary, targets)


INCEPTION_V3 = TrainingStep(
    model=inception_v3,
    inputs=images,
    loss=loss,
    optimizer="sgd(lr=0.045, momentum=0.9, weight_decay=4e-5)",
    checkpoint_blocks=("Mixed",),
)
