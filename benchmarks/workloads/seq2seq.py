"""Sequence to sequence: ``nn.Transformer``, or a recurrent encoder and decoder with additive attention."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class RecurrentSeq2Seq(nn.Module):
    """Bidirectional encoder and an attending decoder of one GRU cell, unrolled over the target."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.keys = nn.Linear(width, width)
        self.query = nn.Linear(width, width)
        self.energy = nn.Linear(width, 1)
        self.cell = nn.GRUCell(2 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory, last = self.encoder(self.source(source))
        keys = self.keys(memory)
        state = last.transpose(0, 1).flatten(1)
        states = []
        for token in self.target(target).unbind(1):
            weights = F.softmax(self.energy(torch.tanh(keys + self.query(state).unsqueeze(1))), dim=1)
            context = (weights * memory).sum(dim=1)
            state = self.cell(torch.cat([token, context], dim=1), state)
            states.append(state)
        return self.head(torch.stack(states, dim=1))


class TransformerSeq2Seq(nn.Module):
    """Encoder and decoder of ``nn.Transformer`` with shared embeddings."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(width, 8, 6, 6, 4 * width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        future = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        x = self.transformer(self.embed(source), self.embed(target), tgt_mask=future, tgt_is_causal=True)
        return self.head(x)


def build(
    batch_size: int,
    device: torch.device,
    *,
    recurrent: bool = False,
    vocabulary: int = 32000,
    width: int = 512,
    source_length: int = 64,
    target_length: int = 64,
    optimizer: str = "Adam",
) -> Callable[[], float]:
    """Return one step with label smoothing and clipped gradients."""
    model = (RecurrentSeq2Seq if recurrent else TransformerSeq2Seq)(vocabulary, width).to(device)
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-4)
    source = torch.randint(vocabulary, (batch_size, source_length), device=device)
    target = torch.randint(vocabulary, (batch_size, target_length + 1), device=device)

    def step() -> float:
        update.zero_grad()
        logits = model(source, target[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), target[:, 1:], ignore_index=0, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        return loss.item()

    return step
