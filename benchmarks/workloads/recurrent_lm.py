"""Recurrent language model or tagger: LSTM, GRU or plain RNN of several layers, optionally packed."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class RecurrentModel(nn.Module):
    """Embedding, recurrent layers and a projection to the vocabulary."""

    def __init__(
        self, kind: str, vocabulary: int, width: int, num_layers: int, bidirectional: bool, drop: float
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = getattr(nn, kind)(
            width, width, num_layers, batch_first=True, dropout=drop, bidirectional=bidirectional
        )
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(width * (2 if bidirectional else 1), vocabulary)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        x = self.drop(self.embed(tokens))
        if lengths is None:
            x, _ = self.layers(x)
        else:
            packed, _ = self.layers(pack_padded_sequence(x, lengths, batch_first=True))
            x, _ = pad_packed_sequence(packed, batch_first=True, total_length=tokens.shape[1])
        return self.head(self.drop(x))


def build(
    batch_size: int,
    device: torch.device,
    *,
    kind: str = "LSTM",
    vocabulary: int = 10000,
    width: int = 650,
    num_layers: int = 2,
    length: int = 70,
    bidirectional: bool = False,
    packed: bool = False,
    dropout: float = 0.5,
    amp: bool = False,
) -> Callable[[], float]:
    """Return one SGD step with clipped gradients.

    Options:
        kind: ``LSTM``, ``GRU`` or ``RNN``.
        packed: Give the sequences falling lengths, from ``length`` down to half of it, and pack them.

    """
    model = RecurrentModel(kind, vocabulary, width, num_layers, bidirectional, dropout).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tokens = torch.randint(vocabulary, (batch_size, length + 1), device=device)
    falls = [length - (length // 2) * i // batch_size for i in range(batch_size)]
    lengths = torch.tensor(falls) if packed else None

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=amp):
            logits = model(tokens[:, :-1], lengths)
            loss = F.cross_entropy(logits.reshape(-1, vocabulary), tokens[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss.item()

    return step
