"""U-Net for segmentation: skip connections by concatenation, transposed convolutions or interpolation."""

import itertools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def double_conv(channels: int, out: int, group_norm: bool) -> nn.Sequential:
    """Return two 3 x 3 convolutions, each with normalisation and ReLU."""
    layers: list[nn.Module] = []
    for before in (channels, out):
        norm = nn.GroupNorm(8, out) if group_norm else nn.BatchNorm2d(out)
        layers += [nn.Conv2d(before, out, 3, padding=1, bias=False), norm, nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Contracting and expanding paths of ``num_levels`` halvings."""

    def __init__(self, base: int, num_levels: int, num_classes: int, bilinear: bool, group_norm: bool) -> None:
        super().__init__()
        widths = [base << level for level in range(num_levels + 1)]
        self.first = double_conv(3, base, group_norm)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(double_conv(a, b, group_norm) for a, b in pairs)
        self.lift = nn.ModuleList(
            nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(b, a, 1))
            if bilinear
            else nn.ConvTranspose2d(b, a, 2, stride=2)
            for a, b in reversed(pairs)
        )
        self.up = nn.ModuleList(double_conv(2 * a, a, group_norm) for a, _ in reversed(pairs))
        self.head = nn.Conv2d(base, num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(F.max_pool2d(x, 2))
        for lift, up in zip(self.lift, self.up, strict=True):
            x = up(torch.cat([skips.pop(), lift(x)], dim=1))
        return self.head(x)


def build(
    batch_size: int,
    device: torch.device,
    *,
    base: int = 64,
    num_levels: int = 4,
    image_size: int = 256,
    num_classes: int = 21,
    bilinear: bool = False,
    group_norm: bool = False,
    amp: bool = False,
) -> Callable[[], float]:
    """Return one Adam step on the sum of cross entropy and Dice loss."""
    model = UNet(base, num_levels, num_classes, bilinear, group_norm).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=amp)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    masks = torch.randint(num_classes, (batch_size, image_size, image_size), device=device)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.float16, enabled=amp):
            logits = model(images)
            loss = F.cross_entropy(logits, masks)
            probabilities = F.softmax(logits, dim=1).float()
            truth = F.one_hot(masks, num_classes).permute(0, 3, 1, 2).float()
            overlap = (probabilities * truth).sum(dim=(2, 3))
            size = probabilities.sum(dim=(2, 3)) + truth.sum(dim=(2, 3))
            loss = loss + 1 - ((2 * overlap + 1) / (size + 1)).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
