"""MobileNetV2, and with squeeze-and-excitation EfficientNet: inverted residuals with depthwise convolutions."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

# expansion, channels, blocks, stride, kernel
MOBILENET = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3)]
MOBILENET += [(6, 160, 3, 2, 3), (6, 320, 1, 1, 3)]
EFFICIENTNET = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5)]
EFFICIENTNET += [(6, 192, 4, 2, 5), (6, 320, 1, 1, 3)]


class SqueezeExcite(nn.Module):
    """Scale channels by a gate computed from their means."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, hidden, 1)
        self.excite = nn.Conv2d(hidden, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = F.silu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))
        return x * torch.sigmoid(self.excite(gate))


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project; with a shortcut where shapes allow."""

    def __init__(self, channels: int, out: int, expansion: int, stride: int, kernel: int, excite: bool) -> None:
        super().__init__()
        hidden = channels * expansion
        act = nn.SiLU if excite else nn.ReLU6
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), act(inplace=True)]
        layers += [
            nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            act(inplace=True),
        ]
        if excite:
            layers.append(SqueezeExcite(hidden, max(1, channels // 4)))
        layers += [nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out)]
        self.body = nn.Sequential(*layers)
        self.shortcut = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.shortcut else self.body(x)


def build(
    batch_size: int,
    device: torch.device,
    *,
    efficient: bool = False,
    image_size: int = 224,
    num_classes: int = 1000,
    amp: bool = False,
    channels_last: bool = False,
) -> Callable[[], float]:
    """Return one RMSprop step with momentum; ``amp`` trains in float16 with a gradient scaler."""
    table = EFFICIENTNET if efficient else MOBILENET
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU(inplace=True)]
    channels = 32
    for expansion, out, num_blocks, stride, kernel in table:
        for block in range(num_blocks):
            layers.append(
                InvertedResidual(channels, out, expansion, stride if block == 0 else 1, kernel, efficient)
            )
            channels = out
    layers += [nn.Conv2d(channels, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.SiLU(inplace=True)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, num_classes)]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = nn.Sequential(*layers).to(device, memory_format=layout)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=amp)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device).to(memory_format=layout)
    labels = torch.randint(num_classes, (batch_size,), device=device)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16, enabled=amp):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
