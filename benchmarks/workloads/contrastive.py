"""CLIP-like contrastive training of an image tower and a text tower."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def make_tower(width: int, depth: int, dropout: float) -> nn.TransformerEncoder:
    """Return a pre-normalised transformer encoder."""
    layer = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout, F.gelu, batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)


class TwoTowers(nn.Module):
    """Encoders of both kinds, projected to one unit sphere."""

    def __init__(self, width: int, depth: int, joint: int, vocabulary: int, length: int, dropout: float) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=32, stride=32)
        self.marker = nn.Parameter(torch.zeros(1, 1, width))
        self.image_tower = make_tower(width, depth, dropout)
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.text_tower = make_tower(width, depth, dropout)
        self.projections = nn.ModuleList([nn.Linear(width, joint, bias=False) for _ in range(2)])
        self.log_scale = nn.Parameter(torch.tensor(2.6592))

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = self.image_tower(torch.cat([self.marker.expand(len(x), -1, -1), x], dim=1))[:, 0]
        future = torch.full((texts.shape[1],) * 2, float("-inf"), device=texts.device).triu(1)
        y = self.text_tower(self.words(texts) + self.positions, mask=future, is_causal=True)
        y = y[torch.arange(len(y), device=y.device), texts.argmax(dim=-1)]
        x = F.normalize(self.projections[0](x), dim=-1)
        y = F.normalize(self.projections[1](y), dim=-1)
        return self.log_scale.exp() * x @ y.t()


def build(
    batch_size: int,
    device: torch.device,
    *,
    width: int = 512,
    depth: int = 8,
    joint: int = 512,
    vocabulary: int = 49408,
    length: int = 77,
    dropout: float = 0.0,
    bfloat16: bool = False,
) -> Callable[[], float]:
    """Return one AdamW step with the symmetric cross entropy over the batch."""
    model = TwoTowers(width, depth, joint, vocabulary, length, dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    texts = torch.randint(vocabulary, (batch_size, length), device=device)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
            logits = model(images, texts)
            truth = torch.arange(batch_size, device=device)
            loss = (F.cross_entropy(logits, truth) + F.cross_entropy(logits.t(), truth)) / 2
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.log_scale.clamp_(0, 4.6052)
        return loss.item()

    return step
