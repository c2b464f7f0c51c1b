"""Super-resolution by residual blocks and pixel shuffle."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions without normalisation, scaled and added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * self.body(x)


def build(
    batch_size: int,
    device: torch.device,
    *,
    width: int = 64,
    num_blocks: int = 16,
    scale: int = 4,
    patch: int = 48,
    channels_last: bool = False,
    amsgrad: bool = False,
) -> Callable[[], float]:
    """Return one Adam step on the L1 distance between made and true images.

    Options:
        scale: Factor of enlargement; a power of two.
        patch: Height and width of the small images, in pixels.

    """
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    layers += [Block(width) for _ in range(num_blocks)]
    for _ in range(scale.bit_length() - 1):
        layers += [nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2)]
    layers.append(nn.Conv2d(width, 3, 3, padding=1))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = nn.Sequential(*layers).to(device, memory_format=layout)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, amsgrad=amsgrad)
    truth = torch.rand(batch_size, 3, patch * scale, patch * scale, device=device)
    small = F.interpolate(truth, size=(patch, patch), mode="bicubic", align_corners=False)
    small = small.contiguous(memory_format=layout)

    def step() -> float:
        optimizer.zero_grad(set_to_none=False)
        skip = F.interpolate(small, scale_factor=float(scale), mode="bilinear", align_corners=False)
        loss = F.l1_loss(model(small) + skip, truth)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
