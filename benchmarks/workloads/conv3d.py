"""Residual 3d convolution net for video clips or volumes."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two 3 x 3 x 3 convolutions around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv3d(channels, width, 3, stride, padding=1, bias=False)
        self.second = nn.Conv3d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm3d(width), nn.BatchNorm3d(width)])
        self.shortcut = nn.Conv3d(channels, width, 1, stride, bias=False) if channels != width else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def build(
    batch_size: int,
    device: torch.device,
    *,
    widths: tuple[int, ...] = (64, 128, 256, 512),
    blocks: int = 2,
    num_frames: int = 16,
    image_size: int = 112,
    num_classes: int = 400,
    optimizer: str = "SGD",
) -> Callable[[], float]:
    """Return one step of a 3d ResNet (18 layers by default) on clips of ``num_frames`` frames."""
    layers: list[nn.Module] = [
        nn.Conv3d(3, widths[0], (3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3), bias=False),
        nn.BatchNorm3d(widths[0]),
        nn.ReLU(),
    ]
    channels = widths[0]
    for width in widths:
        for _ in range(blocks):
            layers.append(Block(channels, width, 2 if channels != width else 1))
            channels = width
    layers += [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    model = nn.Sequential(*layers).to(device)
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    clips = torch.randn(batch_size, 3, num_frames, image_size, image_size, device=device)
    labels = torch.randint(num_classes, (batch_size,), device=device)

    def step() -> float:
        update.zero_grad()
        loss = F.cross_entropy(model(clips), labels)
        loss.backward()
        update.step()
        return loss.item()

    return step
