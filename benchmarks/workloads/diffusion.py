"""Denoising diffusion: residual U-Net with time embedding, group normalisation and attention; weights averaged."""

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two convolutions, shifted by the time embedding."""

    def __init__(self, channels: int, out: int, time_width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, channels), nn.GroupNorm(32, out)])
        self.first = nn.Conv2d(channels, out, 3, padding=1)
        self.second = nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time_width, out)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.first(F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        y = self.second(F.dropout(F.silu(self.norms[1](y)), 0.1, self.training))
        return y + self.shortcut(x)


class Attention(nn.Module):
    """Attention over all positions of an image."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.qkv = nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)
        self.num_heads = num_heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, self.num_heads, -1)).transpose(-1, -2)
        query, key, value = heads.unbind(1)
        attended = F.scaled_dot_product_attention(query, key, value)
        return x + self.out(attended.transpose(-1, -2).reshape(x.shape))


class Denoiser(nn.Module):
    """U-Net of three resolutions with attention at the lowest."""

    def __init__(self, width: int) -> None:
        super().__init__()
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        widths = [width, 2 * width, 4 * width]
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(Residual(a, b, time) for a, b in zip([width, *widths], widths, strict=False))
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths[:-1])
        self.middle = nn.ModuleList(
            [Residual(widths[-1], widths[-1], time), Residual(widths[-1], widths[-1], time)]
        )
        self.attention = Attention(widths[-1], 4)
        joined = [widths[2] * 2, widths[2] + widths[1], widths[1] + widths[0]]
        self.up = nn.ModuleList(Residual(a, b, time) for a, b in zip(joined, reversed(widths), strict=True))
        self.head = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        rates = torch.exp(-math.log(10000) / half * torch.arange(half, device=x.device))
        angles = steps[:, None].float() * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x = self.stem(x)
        skips = []
        for level, block in enumerate(self.down):
            x = block(x, time)
            skips.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](x)
        x = self.middle[1](self.attention(self.middle[0](x, time)), time)
        for level, block in enumerate(self.up):
            if level > 0:
                x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skips.pop()], dim=1), time)
        return self.head(x)


def build(
    batch_size: int,
    device: torch.device,
    *,
    width: int = 128,
    image_size: int = 32,
    num_steps: int = 1000,
    amp: bool = False,
) -> Callable[[], float]:
    """Return one Adam step that predicts noise, and the update of the averaged weights."""
    model = Denoiser(width).to(device)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=amp)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, num_steps, device=device), dim=0)

    def step() -> float:
        steps = torch.randint(num_steps, (batch_size,), device=device)
        noise = torch.randn_like(images)
        signal = kept.gather(0, steps)[:, None, None, None]
        noisy = signal.sqrt() * images + (1 - signal).sqrt() * noise
        with torch.autocast(device.type, dtype=torch.float16, enabled=amp):
            loss = F.mse_loss(model(noisy, steps).float(), noise)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for old, new in zip(average, model.parameters(), strict=True):
                old.mul_(0.9999).add_(new, alpha=0.0001)
        return loss.item()

    return step
