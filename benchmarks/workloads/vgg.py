"""VGG: plain stacks of 3 x 3 convolutions, max pooling and a very wide classifier."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

STAGES = {
    11: [[64], [128], [256] * 2, [512] * 2, [512] * 2],
    16: [[64] * 2, [128] * 2, [256] * 3, [512] * 3, [512] * 3],
    19: [[64] * 2, [128] * 2, [256] * 4, [512] * 4, [512] * 4],
}


def make_vgg(depth: int, batch_norm: bool, num_classes: int) -> nn.Sequential:
    """Return VGG of 11, 16 or 19 layers for images of any size."""
    layers: list[nn.Module] = []
    channels = 3
    for stage in STAGES[depth]:
        for width in stage:
            layers.append(nn.Conv2d(channels, width, kernel_size=3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            channels = width
        layers.append(nn.MaxPool2d(kernel_size=2))
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(512 * 49, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, num_classes),
    )


def build(
    batch_size: int,
    device: torch.device,
    *,
    depth: int = 16,
    batch_norm: bool = False,
    image_size: int = 224,
    num_classes: int = 1000,
    momentum: float = 0.9,
    amp: bool = False,
) -> Callable[[], float]:
    """Return one SGD step; ``amp`` trains in float16 with a gradient scaler."""
    model = make_vgg(depth, batch_norm, num_classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum, weight_decay=5e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=amp)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
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
