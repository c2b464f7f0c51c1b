"""A word-level language model: embedding, two LSTM layers, and a decoder tied to the embedding.

Source: ``pytorch/examples/word_language_model``, with the medium size its README trains on
WikiText-2 (``--emsize 650 --nhid 650 --dropout 0.5 --tied``): 28,434,378 parameters. A batch starts
from a zero state; the state that the example carries over is too small to matter.
"""

from __future__ import annotations

import torch
from torch import nn

from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.torch.workloads.builtin.batches import Batch, tokens_and_targets
from dnnmem_tune.frontends.torch.workloads.builtin.losses import token_cross_entropy
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

_WIKITEXT2_VOCABULARY = 33278


class LSTMLanguageModel(nn.Module):
    """Predicts the next word at every position; axes are (position, batch), which cuDNN prefers."""

    def __init__(
        self, vocab_size: int, embedding_size: int, hidden_size: int, depth: int, dropout: float, tied: bool
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocab_size, embedding_size)
        self.lstm = nn.LSTM(embedding_size, hidden_size, depth, dropout=dropout if depth > 1 else 0.0)
        self.decoder = nn.Linear(hidden_size, vocab_size)
        if tied:
            self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output, _ = self.lstm(self.dropout(self.encoder(tokens)))
        logits: torch.Tensor = self.decoder(self.dropout(output))
        return logits


def lstm_language_model(
    vocab_size: int = _WIKITEXT2_VOCABULARY,
    embedding_size: int = 650,
    hidden_size: int = 650,
    depth: int = 2,
    dropout: float = 0.5,
    tied: bool = True,
) -> LSTMLanguageModel:
    """Return the model.

    Raises:
        UsageError: If the weights are tied and the two sizes differ.

    """
    if tied and embedding_size != hidden_size:
        raise UsageError(
            f"lstm: tied weights need hidden_size={hidden_size} equal to embedding_size={embedding_size}; "
            "set both, or tied=false"
        )
    return LSTMLanguageModel(vocab_size, embedding_size, hidden_size, depth, dropout, tied)


def words(batch_size: int, seq_len: int = 35, vocab_size: int = _WIKITEXT2_VOCABULARY) -> Batch:
    """Return words and the word that follows each, positions first."""
    tokens, targets = tokens_and_targets(batch_size, seq_len, vocab_size)
    return tokens.t().contiguous(), targets.t().contiguous()


LSTM = TrainingStep(
    model=lstm_language_model,
    inputs=words,
    loss=token_cross_entropy,
    optimizer="sgd(lr=20.0)",
    clip_grad_norm=0.25,
    checkpoint_blocks=("LSTM",),
)
