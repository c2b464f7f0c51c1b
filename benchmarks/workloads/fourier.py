"""Fourier neural operator: spectral convolutions with complex weights on a grid."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class SpectralConv(nn.Module):
    """Multiply the lowest modes of a 2d Fourier transform by learnt complex matrices."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(width, width, modes, modes, dtype=torch.complex64) / width) for _ in range(2)
        )
        self.modes = modes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.weights[0])
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.weights[1])
        return torch.fft.irfft2(out, s=x.shape[-2:])


def build(
    batch_size: int,
    device: torch.device,
    *,
    width: int = 32,
    modes: int = 12,
    depth: int = 4,
    grid: int = 128,
) -> Callable[[], float]:
    """Return one Adam step that maps a field on a square grid to another."""
    lift = nn.Conv2d(3, width, 1).to(device)
    spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(depth)).to(device)
    local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth)).to(device)
    project = nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1)).to(device)
    parameters = [p for part in (lift, spectral, local, project) for p in part.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    fields = torch.randn(batch_size, 3, grid, grid, device=device)
    truth = torch.randn(batch_size, 1, grid, grid, device=device)

    def step() -> float:
        optimizer.zero_grad()
        x = lift(fields)
        for transform, mix in zip(spectral, local, strict=True):
            x = F.gelu(transform(x) + mix(x))
        difference = (project(x) - truth).flatten(1).norm(dim=1)
        loss = (difference / truth.flatten(1).norm(dim=1)).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
