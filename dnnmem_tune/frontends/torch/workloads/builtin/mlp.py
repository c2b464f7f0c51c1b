"""A multi-layer perceptron: linear layers of one width, with ReLU."""

from __future__ import annotations

import torch
from torch import nn

from dnnmem_tune.frontends.torch.workloads.builtin.batches import vectors_and_classes
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep


class Hidden(nn.Module):
    """One hidden layer."""

    def __init__(self, in_features: int, width: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.dropout(torch.relu(self.linear(x)))
        return hidden


def mlp(
    in_features: int = 784, width: int = 1024, depth: int = 3, num_classes: int = 10, dropout: float = 0.0
) -> nn.Sequential:
    """Return ``depth`` hidden layers and a linear classifier."""
    widths = [in_features, *[width] * depth]
    hidden = [Hidden(widths[layer], width, dropout) for layer in range(depth)]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], num_classes))


MLP = TrainingStep(
    model=mlp,
    inputs=vectors_and_classes,
    loss="cross_entropy",
    optimizer="adam",
    checkpoint_blocks=("Hidden",),
)
