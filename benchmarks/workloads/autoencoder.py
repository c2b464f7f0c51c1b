"""Convolutional autoencoder, plain or variational, with strided and transposed convolutions."""

import itertools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Autoencoder(nn.Module):
    """Encoder, latent vector (sampled when variational) and decoder."""

    def __init__(self, base: int, num_levels: int, latent: int, image_size: int, variational: bool) -> None:
        super().__init__()
        widths = [3] + [base << level for level in range(num_levels)]
        encoder: list[nn.Module] = []
        decoder: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            encoder += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.LeakyReLU()]
        for before, after in zip(widths[:1:-1], widths[-2:0:-1], strict=True):
            decoder += [nn.ConvTranspose2d(before, after, 3, 2, 1, output_padding=1), nn.BatchNorm2d(after)]
            decoder.append(nn.LeakyReLU())
        decoder.append(nn.ConvTranspose2d(base, 3, 3, 2, 1, output_padding=1))
        side = image_size >> num_levels
        features = widths[-1] * side * side
        self.encoder = nn.Sequential(*encoder, nn.Flatten())
        self.latent = nn.Linear(features, 2 * latent if variational else latent)
        self.expand = nn.Sequential(nn.Linear(latent, features), nn.Unflatten(1, (widths[-1], side, side)))
        self.decoder = nn.Sequential(*decoder, nn.Sigmoid())
        self.variational = variational

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code = self.latent(self.encoder(images))
        divergence = code.new_zeros(())
        if self.variational:
            mean, log_variance = code.chunk(2, dim=1)
            divergence = -0.5 * torch.mean(1 + log_variance - mean.pow(2) - log_variance.exp())
            code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(self.expand(code)), divergence


def build(
    batch_size: int,
    device: torch.device,
    *,
    base: int = 32,
    num_levels: int = 4,
    latent: int = 128,
    image_size: int = 64,
    variational: bool = True,
    loss: str = "mse_loss",
) -> Callable[[], float]:
    """Return one Adamax step; ``loss`` names a function of ``torch.nn.functional``."""
    model = Autoencoder(base, num_levels, latent, image_size, variational).to(device)
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3)
    images = torch.rand(batch_size, 3, image_size, image_size, device=device)

    def step() -> float:
        optimizer.zero_grad()
        output, divergence = model(images)
        value = getattr(F, loss)(output, images) + 1e-3 * divergence
        value.backward()
        optimizer.step()
        return value.item()

    return step
