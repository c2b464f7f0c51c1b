"""DCGAN: a generator and a discriminator with an optimizer each; optionally spectrally normalised."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm


def make_generator(latent: int, base: int, num_doublings: int) -> nn.Sequential:
    """Return a net from latent vectors to images of 4 x 2**num_doublings pixels."""
    width = base << (num_doublings - 1)
    layers: list[nn.Module] = [
        nn.ConvTranspose2d(latent, width, 4, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(True),
    ]
    for _ in range(num_doublings - 1):
        layers += [nn.ConvTranspose2d(width, width // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(width // 2)]
        layers.append(nn.ReLU(True))
        width //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


def make_discriminator(base: int, num_halvings: int, spectral: bool) -> nn.Sequential:
    """Return a net from images to one score each."""
    layers: list[nn.Module] = []
    channels = 3
    for level in range(num_halvings):
        width = base << level
        conv = nn.Conv2d(channels, width, 4, 2, 1, bias=spectral)
        layers.append(spectral_norm(conv) if spectral else conv)
        if level > 0 and not spectral:
            layers.append(nn.BatchNorm2d(width))
        layers.append(nn.LeakyReLU(0.2, inplace=True))
        channels = width
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 4), nn.Flatten(0))


def build(
    batch_size: int,
    device: torch.device,
    *,
    latent: int = 100,
    base: int = 64,
    num_doublings: int = 4,
    spectral: bool = False,
) -> Callable[[], tuple[float, float]]:
    """Return one step: the discriminator on real and made images, then the generator."""
    generator = make_generator(latent, base, num_doublings).to(device)
    discriminator = make_discriminator(base, num_doublings, spectral).to(device)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    size = 4 << num_doublings
    real = torch.randn(batch_size, 3, size, size, device=device)

    def step() -> tuple[float, float]:
        made = generator(torch.randn(batch_size, latent, 1, 1, device=device))
        discriminator_optimizer.zero_grad()
        scores_real = discriminator(real)
        loss_real = F.binary_cross_entropy_with_logits(scores_real, torch.ones_like(scores_real))
        loss_real.backward()
        scores_made = discriminator(made.detach())
        loss_made = F.binary_cross_entropy_with_logits(scores_made, torch.zeros_like(scores_made))
        loss_made.backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        scores = discriminator(made)
        generator_loss = F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))
        generator_loss.backward()
        generator_optimizer.step()
        return (loss_real + loss_made).item(), generator_loss.item()

    return step
