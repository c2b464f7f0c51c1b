"""GoogLeNet with batch normalisation: parallel branches of four kernel sizes, concatenated."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

# in, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection; None is a max pooling
BLOCKS: list[tuple[int, int, int, int, int, int, int] | None] = [
    (192, 64, 96, 128, 16, 32, 32),
    (256, 128, 128, 192, 32, 96, 64),
    None,
    (480, 192, 96, 208, 16, 48, 64),
    (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64),
    (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128),
    None,
    (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
]


def conv(channels: int, out: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return convolution, batch normalisation and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, out, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(out, eps=0.001),
        nn.ReLU(inplace=True),
    )


class Inception(nn.Module):
    """Four branches over the same input, joined along the channels."""

    def __init__(self, channels: int, one: int, red3: int, three: int, red5: int, five: int, pool: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                conv(channels, one, 1),
                nn.Sequential(conv(channels, red3, 1), conv(red3, three, 3)),
                nn.Sequential(conv(channels, red5, 1), conv(red5, five, 5)),
                nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), conv(channels, pool, 1)),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def build(
    batch_size: int,
    device: torch.device,
    *,
    image_size: int = 224,
    num_classes: int = 1000,
    optimizer: str = "RMSprop",
) -> Callable[[], float]:
    """Return one step of GoogLeNet with RMSprop (or another optimizer of ``torch.optim``)."""
    layers: list[nn.Module] = [
        conv(3, 64, 7, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        conv(64, 64, 1),
        conv(64, 192, 3),
        nn.MaxPool2d(3, 2, ceil_mode=True),
    ]
    layers += [Inception(*block) if block else nn.MaxPool2d(3, 2, ceil_mode=True) for block in BLOCKS]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(1024, num_classes)]
    model = nn.Sequential(*layers).to(device)
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    labels = torch.randint(num_classes, (batch_size,), device=device)

    def step() -> float:
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        update.zero_grad()
        loss.backward()
        update.step()
        return loss.item()

    return step
