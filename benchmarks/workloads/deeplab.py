"""Segmentation with dilated convolutions and an atrous spatial pyramid, upsampled to the image."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def conv(channels: int, out: int, size: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Return convolution, batch normalisation and ReLU that keep the size at stride 1."""
    return nn.Sequential(
        nn.Conv2d(channels, out, size, stride, dilation * (size // 2), dilation, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
    )


class Pyramid(nn.Module):
    """Parallel dilated convolutions and a global mean, joined and projected."""

    def __init__(self, channels: int, out: int, rates: tuple[int, ...]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [conv(channels, out, 1), *(conv(channels, out, 3, dilation=r) for r in rates)]
        )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, out, 1), nn.ReLU())
        self.project = nn.Sequential(conv(out * (len(rates) + 2), out, 1), nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = F.interpolate(self.pool(x), size=x.shape[-2:], mode="bilinear", align_corners=False)
        return self.project(torch.cat([*(branch(x) for branch in self.branches), mean], dim=1))


def build(
    batch_size: int,
    device: torch.device,
    *,
    width: int = 64,
    image_size: int = 512,
    num_classes: int = 19,
    rates: tuple[int, ...] = (6, 12, 18),
    bfloat16: bool = False,
) -> Callable[[], float]:
    """Return one step of SGD with momentum; pixels labelled 255 are ignored."""
    backbone = nn.Sequential(
        conv(3, width, 7, stride=2),
        conv(width, 2 * width, 3, stride=2),
        conv(2 * width, 4 * width, 3, stride=2),
        conv(4 * width, 4 * width, 3, dilation=2),
        conv(4 * width, 8 * width, 3, dilation=2),
        conv(8 * width, 8 * width, 3, dilation=4),
    )
    model = nn.Sequential(
        backbone, Pyramid(8 * width, 256, rates), conv(256, 256, 3), nn.Conv2d(256, num_classes, 1)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    masks = torch.randint(num_classes, (batch_size, image_size, image_size), device=device)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
            logits = F.interpolate(
                model(images), size=(image_size, image_size), mode="bilinear", align_corners=False
            )
            loss = F.cross_entropy(logits, masks, ignore_index=255)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
