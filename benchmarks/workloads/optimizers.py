"""A small convolution-and-attention classifier trained with any optimizer of ``torch.optim``."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class PatchClassifier(nn.Module):
    """Patches, transformer layers and a linear head: weights of 1, 2 and 4 dimensions of many sizes."""

    def __init__(self, width: int, depth: int, num_classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=16, stride=16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(tokens.mean(dim=1))


def build(
    batch_size: int,
    device: torch.device,
    *,
    optimizer: str = "AdamW",
    width: int = 512,
    depth: int = 8,
    num_classes: int = 1000,
    max_norm: float | None = None,
    **arguments: object,
) -> Callable[[], None]:
    """Return one step with ``torch.optim.<optimizer>(parameters, **arguments)``.

    Muon takes matrices only: with it, the other parameters are trained by a second AdamW, as its
    documentation asks.
    """
    model = PatchClassifier(width, depth, num_classes).to(device)
    parameters = list(model.parameters())
    optimizers: list[torch.optim.Optimizer] = []
    if optimizer == "Muon":
        optimizers.append(torch.optim.AdamW([p for p in parameters if p.ndim != 2], lr=1e-3))
        parameters = [p for p in parameters if p.ndim == 2]
    optimizers.append(getattr(torch.optim, optimizer)(parameters, lr=1e-3, **arguments))
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    labels = torch.randint(num_classes, (batch_size,), device=device)

    def step() -> None:
        loss = F.cross_entropy(model(images), labels)
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        for each in optimizers:
            each.step()

    return step
