"""Low-rank adaptation: a frozen transformer of half precision with small trainable updates."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Adapted(nn.Module):
    """Frozen linear layer plus a trainable product of two thin matrices."""

    def __init__(self, before: int, after: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(before, after, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, before) * 0.01)
        self.up = nn.Parameter(torch.zeros(after, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        update = F.linear(F.linear(x.float(), self.down), self.up)
        return self.base(x) + update.to(x.dtype)


class Block(nn.Module):
    """Causal attention and a gated perceptron, with adapted query and value projections."""

    def __init__(self, width: int, num_heads: int, hidden: int, rank: int) -> None:
        super().__init__()
        frozen = {"bias": False, "dtype": torch.bfloat16}
        self.norms = nn.ModuleList(nn.RMSNorm(width, dtype=torch.bfloat16).requires_grad_(False) for _ in range(2))
        self.query, self.value = Adapted(width, width, rank), Adapted(width, width, rank)
        self.key = nn.Linear(width, width, **frozen).requires_grad_(False)
        self.out = nn.Linear(width, width, **frozen).requires_grad_(False)
        self.gate = nn.Linear(width, hidden, **frozen).requires_grad_(False)
        self.up = nn.Linear(width, hidden, **frozen).requires_grad_(False)
        self.down = nn.Linear(hidden, width, **frozen).requires_grad_(False)
        self.num_heads = num_heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        heads = [
            p(y).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for p in (self.query, self.key, self.value)
        ]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def build(
    batch_size: int,
    device: torch.device,
    *,
    vocabulary: int = 32000,
    width: int = 2048,
    num_heads: int = 16,
    depth: int = 16,
    length: int = 512,
    rank: int = 16,
) -> Callable[[], float]:
    """Return one AdamW step of the adapters; everything else is frozen bfloat16."""
    embed = nn.Embedding(vocabulary, width, dtype=torch.bfloat16, device=device).requires_grad_(False)
    blocks = nn.Sequential(*(Block(width, num_heads, 11 * width // 4, rank) for _ in range(depth))).to(device)
    head = nn.Linear(width, vocabulary, bias=False, dtype=torch.bfloat16, device=device).requires_grad_(False)
    trainable = [parameter for parameter in blocks.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=2e-4)
    tokens = torch.randint(vocabulary, (batch_size, length + 1), device=device)

    def step() -> float:
        logits = head(blocks(embed(tokens[:, :-1]))).float()
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step
