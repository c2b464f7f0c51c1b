"""Feed-forward style transfer: instance normalisation, reflection padding and Gram-matrix losses."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def conv(channels: int, out: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a reflection-padded convolution with instance normalisation and ReLU."""
    return nn.Sequential(
        nn.ReflectionPad2d(size // 2),
        nn.Conv2d(channels, out, size, stride),
        nn.InstanceNorm2d(out, affine=True),
        nn.ReLU(),
    )


class Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(width, width, 3), conv(width, width, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def gram(features: torch.Tensor) -> torch.Tensor:
    """Return the products of all pairs of channels, averaged over positions."""
    flat = features.flatten(2)
    return torch.bmm(flat, flat.transpose(1, 2)) / flat.shape[2]


def build(
    batch_size: int,
    device: torch.device,
    *,
    base: int = 32,
    num_blocks: int = 5,
    image_size: int = 256,
) -> Callable[[], float]:
    """Return one RAdam step against a frozen convolutional net that judges content and style."""
    model = nn.Sequential(
        conv(3, base, 9),
        conv(base, 2 * base, 3, 2),
        conv(2 * base, 4 * base, 3, 2),
        *(Residual(4 * base) for _ in range(num_blocks)),
        nn.Upsample(scale_factor=2),
        conv(4 * base, 2 * base, 3),
        nn.Upsample(scale_factor=2),
        conv(2 * base, base, 3),
        nn.Conv2d(base, 3, 9, padding=4),
    ).to(device)
    judge = nn.ModuleList(
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU())
        for a, b in ((3, 64), (64, 128), (128, 256))
    )
    judge = judge.to(device).requires_grad_(False).eval()
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
    images = torch.rand(batch_size, 3, image_size, image_size, device=device)
    style = torch.rand(1, 3, image_size, image_size, device=device)

    def features(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for stage in judge:
            x = stage(x)
            found.append(x)
            x = F.avg_pool2d(x, 2)
        return found

    with torch.no_grad():
        style_grams = [gram(each) for each in features(style)]

    def step() -> float:
        optimizer.zero_grad()
        made = features(model(images))
        with torch.no_grad():
            content = features(images)
        loss = F.mse_loss(made[1], content[1])
        for each, wanted in zip(made, style_grams, strict=True):
            loss = loss + F.mse_loss(gram(each), wanted.expand(batch_size, -1, -1))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
