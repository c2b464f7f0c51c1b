"""ConvNeXt: large depthwise kernels, layer normalisation over channels, GELU and layer scale."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation of the channels of an image in NCHW order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """Depthwise convolution, then a two-layer perceptron on every position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.expand = nn.Linear(width, 4 * width)
        self.reduce = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.reduce(F.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


def build(
    batch_size: int,
    device: torch.device,
    *,
    depths: tuple[int, ...] = (3, 3, 9, 3),
    widths: tuple[int, ...] = (96, 192, 384, 768),
    image_size: int = 224,
    num_classes: int = 1000,
    bfloat16: bool = False,
    foreach: bool | None = None,
) -> Callable[[], float]:
    """Return one AdamW step of ConvNeXt (tiny by default); ``bfloat16`` trains under autocast."""
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, stride=4), ChannelNorm(widths[0], eps=1e-6)]
    for index, (num_blocks, width) in enumerate(zip(depths, widths, strict=True)):
        if index > 0:
            before = widths[index - 1]
            layers += [ChannelNorm(before, eps=1e-6), nn.Conv2d(before, width, 2, stride=2)]
        layers += [Block(width) for _ in range(num_blocks)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], num_classes)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=foreach)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    labels = torch.randint(num_classes, (batch_size,), device=device)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
