"""Semi-supervised training: a student follows labels and a teacher that is its moving average."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class WideBlock(nn.Module):
    """Pre-activated residual block of two 3 x 3 convolutions."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(width)])
        self.first = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(channels, width, 1, stride, bias=False) if channels != width else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](x))
        residual = x if self.shortcut is None else self.shortcut(y)
        y = self.second(F.dropout(F.relu(self.norms[1](self.first(y))), 0.3, self.training))
        return y + residual


def make_wide_resnet(depth: int, factor: int, num_classes: int) -> nn.Sequential:
    """Return a wide residual net of ``6 * depth + 4`` layers for small images."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    channels = 16
    for stage in range(3):
        width = (16 << stage) * factor
        for block in range(depth):
            layers.append(WideBlock(channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = width
    head = [nn.BatchNorm2d(channels), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers, *head)


def build(
    batch_size: int,
    device: torch.device,
    *,
    depth: int = 4,
    factor: int = 10,
    num_classes: int = 100,
    decay: float = 0.999,
    foreach: bool = True,
) -> Callable[[], float]:
    """Return one SGD step on labelled images, the consistency loss, and the update of the teacher."""
    student = make_wide_resnet(depth, factor, num_classes).to(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=foreach)
    images = torch.randn(batch_size, 3, 32, 32, device=device)
    labels = torch.randint(num_classes, (batch_size,), device=device)

    def step() -> float:
        logits = student(images + 0.1 * torch.randn_like(images))
        with torch.no_grad():
            target = F.softmax(teacher(images), dim=1)
        loss = F.cross_entropy(logits, labels) + F.mse_loss(F.softmax(logits, dim=1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if foreach:
                torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 1 - decay)
            else:
                for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                    old.copy_(old * decay + new * (1 - decay))
        return loss.item()

    return step
