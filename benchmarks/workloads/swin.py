"""Swin-like transformer: attention within shifted windows, patches merged between stages."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class WindowBlock(nn.Module):
    """Attention inside windows of the (possibly rolled) image, then a perceptron."""

    def __init__(self, width: int, num_heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.bias = nn.Parameter(torch.zeros((2 * window - 1) ** 2, num_heads))
        grid = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        offset = grid[:, :, None] - grid[:, None, :] + window - 1
        self.register_buffer("index", (offset[0] * (2 * window - 1) + offset[1]).flatten())
        self.num_heads, self.window, self.shift = num_heads, window, shift

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        w = self.window
        if self.shift:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        windows = (
            x.view(batch, height // w, w, width // w, w, channels).transpose(2, 3).reshape(-1, w * w, channels)
        )
        heads = self.qkv(windows).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        bias = self.bias.index_select(0, self.index).view(w * w, w * w, -1).permute(2, 0, 1)
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1) + bias.unsqueeze(0)
        windows = self.out((F.softmax(scores, dim=-1) @ value).transpose(1, 2).flatten(2))
        x = windows.view(batch, height // w, width // w, w, w, channels).transpose(2, 3)
        x = x.reshape(batch, height, width, channels)
        return torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2)) if self.shift else x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Merge(nn.Module):
    """Join 2 x 2 neighbours and halve their channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, dim=-1)))


def build(
    batch_size: int,
    device: torch.device,
    *,
    depths: tuple[int, ...] = (2, 2, 6, 2),
    width: int = 96,
    num_heads: int = 3,
    window: int = 7,
    image_size: int = 224,
    num_classes: int = 1000,
    amp: bool = False,
) -> Callable[[], float]:
    """Return one AdamW step (the tiny size by default); ``amp`` trains in float16 with a gradient scaler."""
    embed = nn.Conv2d(3, width, kernel_size=4, stride=4)
    layers: list[nn.Module] = [nn.LayerNorm(width)]
    for stage, depth in enumerate(depths):
        if stage > 0:
            layers.append(Merge(width))
            width *= 2
            num_heads *= 2
        layers += [WindowBlock(width, num_heads, window, window // 2 * (block % 2)) for block in range(depth)]
    trunk = nn.Sequential(*layers, nn.LayerNorm(width))
    model = nn.ModuleList([embed, trunk, nn.Linear(width, num_classes)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    scaler = torch.amp.GradScaler(device.type, enabled=amp)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    labels = torch.randint(num_classes, (batch_size,), device=device)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16, enabled=amp):
            x = model[0](images).permute(0, 2, 3, 1)
            logits = model[2](model[1](x).mean(dim=(1, 2)))
            loss = F.cross_entropy(logits, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
