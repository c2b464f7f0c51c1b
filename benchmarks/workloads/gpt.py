"""Decoder-only transformer in plain torch: causal attention, accumulation, checkpointing, several precisions."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Pre-normalised causal attention and perceptron."""

    def __init__(self, width: int, num_heads: int, dropout: float, rms_norm: bool, explicit: bool) -> None:
        super().__init__()
        norm = nn.RMSNorm if rms_norm else nn.LayerNorm
        self.norms = nn.ModuleList([norm(width), norm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.num_heads = num_heads
        self.dropout = dropout
        self.explicit = explicit

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        if not self.explicit:
            attended = F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, is_causal=True)
        else:
            scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            weights = F.dropout(F.softmax(scores.masked_fill(future, float("-inf")), dim=-1), self.dropout)
            attended = torch.einsum("bhqk,bhkd->bhqd", weights, value)
        return self.out(attended.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self.attend(self.norms[0](x)), self.dropout)
        return x + F.dropout(self.mlp(self.norms[1](x)), self.dropout)


class Decoder(nn.Module):
    """Embeddings, blocks (recomputed in the backward pass if asked) and tied output weights."""

    def __init__(
        self, vocabulary: int, length: int, width: int, blocks: list[Block], recompute: str | None
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.recompute = recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.recompute == "reentrant") if self.recompute else block(x)
        return self.head(self.norm(x))


def build(
    batch_size: int,
    device: torch.device,
    *,
    vocabulary: int = 50304,
    width: int = 768,
    num_heads: int = 12,
    depth: int = 12,
    length: int = 512,
    dropout: float = 0.0,
    rms_norm: bool = False,
    explicit: bool = False,
    recompute: str | None = None,
    micro_batches: int = 1,
    precision: str = "float32",
    fused: bool | None = None,
) -> Callable[[], None]:
    """Return one AdamW step on ``batch_size`` sequences, split over ``micro_batches`` passes.

    Options:
        explicit: Attend by einsum and softmax instead of the fused operator.
        recompute: Checkpoint every block: ``reentrant``, ``plain`` or ``None``.
        precision: ``float32``, ``bfloat16`` (autocast), ``float16`` (autocast and scaler) or ``pure`` (bfloat16
            weights).

    """
    blocks = [Block(width, num_heads, dropout, rms_norm, explicit) for _ in range(depth)]
    model = Decoder(vocabulary, length, width, blocks, recompute).to(device)
    if precision == "pure":
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=fused)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "float16")
    cast = torch.autocast(
        device.type,
        dtype=torch.float16 if precision == "float16" else torch.bfloat16,
        enabled=precision in ("float16", "bfloat16"),
    )
    tokens = torch.randint(vocabulary, (batch_size, length + 1), device=device)

    def step() -> None:
        for part in tokens.chunk(micro_batches):
            with cast:
                logits = model(part[:, :-1])
                loss = F.cross_entropy(logits.reshape(-1, vocabulary), part[:, 1:].reshape(-1)) / micro_batches
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step
