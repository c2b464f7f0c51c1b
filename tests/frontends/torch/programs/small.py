"""Networks small enough for their traces to be read; run only inside a worker process."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Step = Callable[[], object]


class Motivating(nn.Module):
    """The example of DNNMem's Figure 2: convolution, pooling, view, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.pool = nn.AvgPool2d(2, 2)
        self.linear = nn.Linear(1800, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images of shape ``(B, 3, 32, 32)`` to scores of shape ``(B, 10)``."""
        features = self.pool(self.conv(images))
        return self.linear(features.view(features.size(0), -1))


class Residual(nn.Module):
    """Two layers and a skip connection, with dropout and layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)
        self.dropout = nn.Dropout(0.1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Shape ``(B, 64)`` to ``(B, 64)``."""
        return inputs + self.dropout(self.down(torch.relu(self.up(self.norm(inputs)))))


class Recurrent(nn.Module):
    """A one-layer LSTM with a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Shape ``(B, 16, 32)`` to ``(B, 8)``."""
        return self.head(self.lstm(inputs)[0][:, -1])


NETWORKS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "motivating": (Motivating, (3, 32, 32)),
    "residual": (Residual, (64,)),
    "recurrent": (Recurrent, (16, 32)),
}


def build(
    batch_size: int, device: torch.device, network: str, optimizer: str = "SGD", precision: str = "fp32"
) -> Step:
    """Return the training step of one of them."""
    kind, shape = NETWORKS[network]
    model = kind().to(device)
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)

    def step() -> None:
        inputs = torch.randn(batch_size, *shape, device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = model(inputs).float().pow(2).mean()
        update.zero_grad()
        loss.backward()
        update.step()

    return step
