"""DenseNet: every layer reads the concatenation of all before it; optionally recomputed in the backward pass."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class DenseLayer(nn.Module):
    """Bottleneck layer that adds ``growth`` channels."""

    def __init__(self, channels: int, growth: int, recompute: bool) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.Conv2d(channels, 4 * growth, 1, bias=False)
        )
        self.expand = nn.Sequential(
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )
        self.recompute = recompute

    def join(self, *features: torch.Tensor) -> torch.Tensor:
        return self.squeeze(torch.cat(features, dim=1))

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        if self.recompute and any(feature.requires_grad for feature in features):
            return self.expand(checkpoint(self.join, *features, use_reentrant=False))
        return self.expand(self.join(*features))


class DenseBlock(nn.Module):
    """A run of dense layers."""

    def __init__(self, channels: int, growth: int, num_layers: int, recompute: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DenseLayer(channels + i * growth, growth, recompute) for i in range(num_layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, dim=1)


def build(
    batch_size: int,
    device: torch.device,
    *,
    depths: tuple[int, ...] = (6, 12, 24, 16),
    growth: int = 32,
    image_size: int = 224,
    num_classes: int = 1000,
    recompute: bool = False,
) -> Callable[[], None]:
    """Return one step of DenseNet (121 layers by default) with SGD and Nesterov momentum."""
    channels = 2 * growth
    layers: list[nn.Module] = [
        nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    for index, num_layers in enumerate(depths):
        layers.append(DenseBlock(channels, growth, num_layers, recompute))
        channels += num_layers * growth
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        if index + 1 < len(depths):
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    labels = torch.randint(num_classes, (batch_size,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step
