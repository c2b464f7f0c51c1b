"""Mixture of experts with a fixed capacity: top-k routing, cumulative positions, einsum dispatch."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Experts(nn.Module):
    """Send every token to its two best experts, each of which takes ``capacity`` tokens of a sequence."""

    def __init__(self, width: int, num_experts: int, capacity: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, num_experts, bias=False)
        self.up = nn.Parameter(torch.randn(num_experts, width, 4 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(num_experts, 4 * width, width) * (4 * width) ** -0.5)
        self.num_experts, self.capacity = num_experts, capacity

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = F.softmax(self.router(x), dim=-1)
        weights, chosen = gates.topk(2, dim=-1)
        chosen_hot = F.one_hot(chosen, self.num_experts).sum(dim=2)
        position = chosen_hot.cumsum(dim=1) * chosen_hot - 1
        slots = F.one_hot(position.clamp(0, self.capacity - 1), self.capacity).to(x.dtype)
        slots = slots * ((position >= 0) & (position < self.capacity)).unsqueeze(-1)
        combine = slots * (gates / weights.sum(dim=-1, keepdim=True)).unsqueeze(-1)
        inputs = torch.einsum("btec,btd->ebcd", slots, x).flatten(1, 2)
        outputs = torch.bmm(F.silu(torch.bmm(inputs, self.up)), self.down)
        return torch.einsum("btec,ebcd->btd", combine, outputs.unflatten(1, (len(x), self.capacity)))


class Block(nn.Module):
    """Attention, then a mixture of experts."""

    def __init__(self, width: int, num_heads: int, num_experts: int, capacity: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.attention = nn.MultiheadAttention(width, num_heads, batch_first=True)
        self.experts = Experts(width, num_experts, capacity)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.experts(self.norms[1](x))


def build(
    batch_size: int,
    device: torch.device,
    *,
    width: int = 512,
    num_heads: int = 8,
    num_experts: int = 8,
    depth: int = 6,
    length: int = 256,
    vocabulary: int = 32000,
    foreach: bool | None = None,
) -> Callable[[], float]:
    """Return one AdamW step of a language model whose experts hold twice their fair share."""
    capacity = 2 * length * 2 // num_experts
    model = nn.Sequential(
        nn.Embedding(vocabulary, width),
        *(Block(width, num_heads, num_experts, capacity) for _ in range(depth)),
        nn.Linear(width, vocabulary),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=foreach)
    tokens = torch.randint(vocabulary, (batch_size, length + 1), device=device)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
