"""GPT-2 small: 124,439,808 parameters.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; layout and
counts as ``GPT2LMHeadModel`` of transformers, with the decoder tied to the token embedding.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from dnnmem_tune.frontends.torch.workloads.builtin.batches import Batch, require_positions, tokens_and_targets
from dnnmem_tune.frontends.torch.workloads.builtin.losses import token_cross_entropy
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

_VOCABULARY = 50257


class CausalSelfAttention(nn.Module):
    """Multi-head attention to the positions before."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_dropout = dropout
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
            for part in self.c_attn(x).split(x.size(2), dim=2)
        )
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.attention_dropout if self.training else 0.0, is_causal=True
        )
        projected: torch.Tensor = self.dropout(self.c_proj(attended.transpose(1, 2).reshape(x.shape)))
        return projected


class Block(nn.Module):
    """Attention and a feed-forward network, each normalised before and added to its input."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden_size)
        self.attn = CausalSelfAttention(hidden_size, num_heads, dropout)
        self.ln_2 = nn.LayerNorm(hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 4 * hidden_size),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * hidden_size, hidden_size),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        out: torch.Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    """Token and position embeddings, blocks, and a token for every position."""

    def __init__(
        self, vocab_size: int, hidden_size: int, depth: int, num_heads: int, max_positions: int, dropout: float
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, hidden_size)
        self.wpe = nn.Embedding(max_positions, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(hidden_size, num_heads, dropout) for _ in range(depth))
        self.ln_f = nn.LayerNorm(hidden_size)
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        require_positions(tokens.size(1), self.wpe.num_embeddings)
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.dropout(self.wte(tokens) + self.wpe(positions))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.lm_head(self.ln_f(x))
        return logits


def gpt(
    vocab_size: int = _VOCABULARY,
    hidden_size: int = 768,
    depth: int = 12,
    num_heads: int = 12,
    max_positions: int = 1024,
    dropout: float = 0.1,
) -> GPT:
    """Return the model; ``hidden_size=1024, depth=24, num_heads=16`` is GPT-2 medium."""
    return GPT(vocab_size, hidden_size, depth, num_heads, max_positions, dropout)


def text(batch_size: int, seq_len: int = 1024, vocab_size: int = _VOCABULARY) -> Batch:
    """Return tokens and the token that follows each."""
    return tokens_and_targets(batch_size, seq_len, vocab_size)


GPT2 = TrainingStep(
    model=gpt,
    inputs=text,
    loss=token_cross_entropy,
    optimizer="adamw(lr=6e-4)",
    clip_grad_norm=1.0,
    checkpoint_blocks=("Block",),
)
