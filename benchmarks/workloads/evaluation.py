"""Evaluation instead of training: a forward pass without gradients, and its metrics."""

from collections.abc import Callable

import torch
from torch import nn


class Encoder(nn.Module):
    """Convolutional stem and transformer encoder."""

    def __init__(self, width: int, depth: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width // 4, 3, 2, 1),
            nn.BatchNorm2d(width // 4),
            nn.ReLU(),
            nn.Conv2d(width // 4, width, 8, 8),
        )
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, 0.1, batch_first=True) for _ in range(depth)
        )
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


def build(
    batch_size: int,
    device: torch.device,
    *,
    width: int = 768,
    depth: int = 12,
    num_classes: int = 1000,
    inference_mode: bool = False,
    half: bool = False,
) -> Callable[[], float]:
    """Return one pass that scores a batch: top-5 accuracy and mean confidence of a sorted ranking.

    Options:
        inference_mode: Use ``torch.inference_mode`` instead of ``torch.no_grad``.
        half: Hold weights and images in float16.

    """
    model = Encoder(width, depth, num_classes).to(device).eval()
    dtype = torch.float16 if half else torch.float32
    model = model.to(dtype)
    images = torch.randn(batch_size, 3, 224, 224, device=device, dtype=dtype)
    labels = torch.randint(num_classes, (batch_size,), device=device)

    def step() -> float:
        with torch.inference_mode() if inference_mode else torch.no_grad():
            scores = torch.softmax(model(images), dim=1)
            best = scores.topk(5, dim=1).indices
            correct = (best == labels[:, None]).any(dim=1).float().mean()
            ranked, _ = torch.sort(scores, dim=1, descending=True)
            confidence = ranked.cumsum(dim=1)[:, 4].mean()
        return (correct + confidence).item()

    return step
