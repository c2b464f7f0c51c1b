"""WaveNet: dilated causal 1d convolutions with gates and skip connections; optionally weight normalised."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm


class WaveNet(nn.Module):
    """Stacks of gated convolutions whose dilation doubles."""

    def __init__(
        self, width: int, skip: int, num_stacks: int, num_layers: int, levels: int, normalised: bool
    ) -> None:
        super().__init__()

        def conv(*args: int, **kwargs: int) -> nn.Module:
            layer = nn.Conv1d(*args, **kwargs)
            return weight_norm(layer) if normalised else layer

        dilations = [1 << layer for layer in range(num_layers)] * num_stacks
        self.embed = nn.Embedding(levels, width)
        self.gates = nn.ModuleList(conv(width, 2 * width, 2, dilation=d) for d in dilations)
        self.skips = nn.ModuleList(conv(width, skip, 1) for _ in dilations)
        self.residuals = nn.ModuleList(conv(width, width, 1) for _ in dilations)
        self.head = nn.Sequential(nn.ReLU(), conv(skip, skip, 1), nn.ReLU(), conv(skip, levels, 1))
        self.dilations = dilations

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        x = self.embed(wave).transpose(1, 2)
        total = torch.zeros((), device=wave.device)
        for gate, skip, residual, dilation in zip(
            self.gates, self.skips, self.residuals, self.dilations, strict=True
        ):
            signal, control = gate(F.pad(x, (dilation, 0))).chunk(2, dim=1)
            y = torch.tanh(signal) * torch.sigmoid(control)
            total = total + skip(y)
            x = x + residual(y)
        return self.head(total)


def build(
    batch_size: int,
    device: torch.device,
    *,
    width: int = 64,
    skip: int = 256,
    num_stacks: int = 3,
    num_layers: int = 10,
    num_samples: int = 8000,
    levels: int = 256,
    normalised: bool = False,
) -> Callable[[], float]:
    """Return one Adam step that predicts each sample of the wave from those before it."""
    model = WaveNet(width, skip, num_stacks, num_layers, levels, normalised).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    wave = torch.randint(levels, (batch_size, num_samples + 1), device=device)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(wave[:, :-1]), wave[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step
