"""BERT with the masked-language-model head: 109,514,298 (base) and 335,174,458 (large) parameters.

Source: Devlin et al., "BERT", 2018; layout and counts as ``BertForMaskedLM`` of transformers for
``bert-base-uncased`` and ``bert-large-uncased``: no pooler, decoder tied to the word embedding.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from dnnmem_tune.frontends.torch.workloads.builtin.batches import Batch, require_positions, tokens_and_targets
from dnnmem_tune.frontends.torch.workloads.builtin.losses import token_cross_entropy
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

_VOCABULARY = 30522
_NORM_EPSILON = 1e-12


class Embeddings(nn.Module):
    """The sum of what a word, its position and its segment contribute."""

    def __init__(self, vocab_size: int, max_positions: int, hidden_size: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, hidden_size, padding_idx=0)
        self.positions = nn.Embedding(max_positions, hidden_size)
        self.segments = nn.Embedding(2, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=_NORM_EPSILON)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("position_ids", torch.arange(max_positions).unsqueeze(0), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = self.get_buffer("position_ids")[:, : tokens.size(1)]
        segments = torch.zeros_like(tokens)
        summed = self.words(tokens) + self.segments(segments) + self.positions(positions)
        embedded: torch.Tensor = self.dropout(self.norm(summed))
        return embedded


class SelfAttention(nn.Module):
    """Multi-head attention over the whole sequence, with its output projection and residual."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_dropout = dropout
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(hidden_size, eps=_NORM_EPSILON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            projection(x).view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.attention_dropout if self.training else 0.0
        )
        attended = attended.transpose(1, 2).reshape(x.shape)
        normalized: torch.Tensor = self.norm(self.dropout(self.output(attended)) + x)
        return normalized


class Layer(nn.Module):
    """Attention and a feed-forward network, each normalised after its residual."""

    def __init__(self, hidden_size: int, num_heads: int, intermediate_size: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden_size, num_heads, dropout)
        self.intermediate = nn.Linear(hidden_size, intermediate_size)
        self.output = nn.Linear(intermediate_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(hidden_size, eps=_NORM_EPSILON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended = self.attention(x)
        hidden = functional.gelu(self.intermediate(attended))
        normalized: torch.Tensor = self.norm(self.dropout(self.output(hidden)) + attended)
        return normalized


class BertForMaskedLM(nn.Module):
    """Embeddings, encoder layers, and a word for every position."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        depth: int,
        num_heads: int,
        intermediate_size: int,
        max_positions: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocab_size, max_positions, hidden_size, dropout)
        self.layers = nn.ModuleList(
            Layer(hidden_size, num_heads, intermediate_size, dropout) for _ in range(depth)
        )
        self.transform = nn.Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=_NORM_EPSILON)
        self.decoder = nn.Linear(hidden_size, vocab_size)
        self.decoder.weight = self.embeddings.words.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        require_positions(tokens.size(1), self.embeddings.positions.num_embeddings)
        hidden = self.embeddings(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.decoder(self.norm(functional.gelu(self.transform(hidden))))
        return logits


def bert(
    vocab_size: int = _VOCABULARY,
    hidden_size: int = 768,
    depth: int = 12,
    num_heads: int = 12,
    intermediate_size: int = 3072,
    max_positions: int = 512,
    dropout: float = 0.1,
) -> BertForMaskedLM:
    """Return the model, of the base size by default."""
    return BertForMaskedLM(vocab_size, hidden_size, depth, num_heads, intermediate_size, max_positions, dropout)


def masked_tokens(batch_size: int, seq_len: int = 128, vocab_size: int = _VOCABULARY) -> Batch:
    """Return tokens and the original of each."""
    return tokens_and_targets(batch_size, seq_len, vocab_size)


BERT_BASE = TrainingStep(
    model=bert,
    inputs=masked_tokens,
    loss=token_cross_entropy,
    optimizer="adamw(lr=1e-4)",
    clip_grad_norm=1.0,
    checkpoint_blocks=("Layer",),
)

BERT_LARGE = TrainingStep(
    model=bert,
    inputs=masked_tokens,
    loss=token_cross_entropy,
    optimizer="adamw(lr=1e-4)",
    clip_grad_norm=1.0,
    checkpoint_blocks=("Layer",),
    defaults={"hidden_size": 1024, "depth": 24, "num_heads": 16, "intermediate_size": 4096},
)
