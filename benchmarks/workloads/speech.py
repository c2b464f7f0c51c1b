"""Frame classifier for speech: strided 1d convolutions with gates, then a bidirectional GRU or attention."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class ConformerBlock(nn.Module):
    """Attention followed by a gated depthwise convolution along time."""

    def __init__(self, width: int, num_heads: int, kernel: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, num_heads, dropout=0.1, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.gate = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.point = nn.Conv1d(width, width, 1)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = F.glu(self.gate(self.norms[1](x).transpose(1, 2)), dim=1)
        y = self.point(F.silu(self.batch_norm(self.depthwise(y))))
        x = x + y.transpose(1, 2)
        return x + self.mlp(self.norms[2](x))


def build(
    batch_size: int,
    device: torch.device,
    *,
    num_mels: int = 80,
    num_frames: int = 1600,
    width: int = 256,
    depth: int = 8,
    num_classes: int = 128,
    recurrent: bool = False,
    bfloat16: bool = False,
) -> Callable[[], float]:
    """Return one AdamW step on spectrograms, a quarter of whose frames are hidden."""
    stem = nn.Sequential(
        nn.Conv1d(num_mels, 2 * width, 5, stride=2, padding=2),
        nn.GLU(dim=1),
        nn.Conv1d(width, 2 * width, 5, stride=2, padding=2),
        nn.GLU(dim=1),
    ).to(device)
    body = nn.Sequential(*([] if recurrent else [ConformerBlock(width, 4, 31) for _ in range(depth)])).to(device)
    gru = nn.GRU(width, width // 2, depth, batch_first=True, bidirectional=True).to(device) if recurrent else None
    head = nn.Linear(width, num_classes).to(device)
    modules = nn.ModuleList([stem, body, head] + ([gru] if gru is not None else []))
    optimizer = torch.optim.AdamW(modules.parameters(), lr=1e-3)
    spectra = torch.randn(batch_size, num_mels, num_frames, device=device)
    hidden = torch.rand(batch_size, 1, num_frames, device=device) < 0.25
    labels = torch.randint(num_classes, (batch_size, num_frames // 4), device=device)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
            x = body(stem(spectra.masked_fill(hidden, 0.0)).transpose(1, 2))
            if gru is not None:
                x, _ = gru(x)
            loss = F.cross_entropy(head(x).flatten(0, 1), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(modules.parameters(), 5.0)
        optimizer.step()
        return loss.item()

    return step
