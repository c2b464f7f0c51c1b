"""The encoder-decoder transformer of a sweep in which 5 of about 155 runs did not run out of memory.

The search space is that of https://github.com/CUNY-CL/yoyodyne/issues/178, see
``configs/spaces/transformer-sweep.toml``. Before such a sweep::

    dnnmem space configs/spaces/transformer-sweep.toml --gpu 24GiB
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

VOCABULARY = 64


def build(
    batch_size: int,
    device: torch.device,
    *,
    heads: int = 4,
    encoder_layers: int = 4,
    decoder_layers: int = 4,
    embedding: int = 256,
    hidden: int = 512,
    length: int = 64,
    learning_rate: float = 1e-3,
    dropout: float = 0.1,
) -> Callable[[], None]:
    """Return one training step on characters, as a sequence-to-sequence model of words has it."""
    model = nn.ModuleDict(
        {
            "source": nn.Embedding(VOCABULARY, embedding),
            "target": nn.Embedding(VOCABULARY, embedding),
            "transformer": nn.Transformer(
                embedding, heads, encoder_layers, decoder_layers, hidden, dropout, batch_first=True
            ),
            "output": nn.Linear(embedding, VOCABULARY),
        }
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    source = torch.randint(0, VOCABULARY, (batch_size, length), device=device)
    target = torch.randint(0, VOCABULARY, (batch_size, length), device=device)

    def step() -> None:
        hidden_states = model["transformer"](model["source"](source), model["target"](target))
        logits = model["output"](hidden_states)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
