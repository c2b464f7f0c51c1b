"""Masked autoencoder: a shuffled quarter of the patches is encoded, the rest is predicted."""

from collections.abc import Callable

import torch
from torch import nn


class MaskedAutoencoder(nn.Module):
    """Vision encoder over kept patches and a lighter decoder over all."""

    def __init__(self, width: int, depth: int, patch: int, num_patches: int, keep: float) -> None:
        super().__init__()
        light = width // 2
        self.embed = nn.Linear(3 * patch * patch, width)
        self.positions = nn.Parameter(torch.zeros(1, num_patches, width))

        def stack(size: int, num_layers: int) -> nn.TransformerEncoder:
            layer = nn.TransformerEncoderLayer(size, size // 64, 4 * size, 0.0, "gelu", batch_first=True)
            return nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)

        self.encoder = stack(width, depth)
        self.bridge = nn.Linear(width, light)
        self.hidden = nn.Parameter(torch.zeros(1, 1, light))
        self.decoder = stack(light, max(1, depth // 3))
        self.head = nn.Linear(light, 3 * patch * patch)
        self.num_kept = int(num_patches * keep)

    def forward(self, patches: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, num_patches, _ = patches.shape
        x = self.embed(patches) + self.positions
        order = torch.rand(batch, num_patches, device=x.device).argsort(dim=1)
        kept = order[:, : self.num_kept].unsqueeze(-1).expand(-1, -1, x.shape[-1])
        encoded = self.bridge(self.encoder(x.gather(1, kept)))
        hidden = self.hidden.expand(batch, num_patches - self.num_kept, -1)
        restore = order.argsort(dim=1)
        every = torch.cat([encoded, hidden], dim=1)
        every = every.gather(1, restore.unsqueeze(-1).expand(-1, -1, every.shape[-1]))
        return self.head(self.decoder(every)), restore >= self.num_kept


def build(
    batch_size: int,
    device: torch.device,
    *,
    width: int = 768,
    depth: int = 12,
    patch: int = 16,
    image_size: int = 224,
    keep: float = 0.25,
    bfloat16: bool = False,
) -> Callable[[], float]:
    """Return one AdamW step on the squared error of the hidden patches."""
    num_patches = (image_size // patch) ** 2
    model = MaskedAutoencoder(width, depth, patch, num_patches, keep).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95))
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)

    def step() -> float:
        patches = images.unfold(2, patch, patch).unfold(3, patch, patch)
        patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(batch_size, num_patches, -1)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
            predicted, hidden = model(patches)
            errors = (predicted - patches).square().mean(dim=-1)
            loss = errors.masked_fill(~hidden, 0.0).sum() / hidden.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
