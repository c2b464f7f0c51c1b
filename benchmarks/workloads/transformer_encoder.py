"""Stack of ``nn.TransformerEncoderLayer`` with padding or causal masks."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def build(
    batch_size: int,
    device: torch.device,
    *,
    vocabulary: int = 30000,
    width: int = 512,
    num_heads: int = 8,
    depth: int = 6,
    length: int = 256,
    dropout: float = 0.1,
    norm_first: bool = False,
    mask: str | None = "padding",
    amp: str | None = None,
    fused: bool | None = None,
) -> Callable[[], float]:
    """Return one Adam step of a token classifier.

    Options:
        mask: ``padding`` hides the last eighth of every sequence, ``causal`` the future, ``None`` nothing.
        amp: ``float16`` (with a gradient scaler), ``bfloat16``, or ``None`` for float32.

    """
    embed = nn.Embedding(vocabulary, width).to(device)
    positions = nn.Parameter(torch.zeros(length, width, device=device))
    layer = nn.TransformerEncoderLayer(
        width, num_heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=norm_first
    )
    encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).to(device)
    head = nn.Linear(width, vocabulary).to(device)
    parameters = [*embed.parameters(), positions, *encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=fused)
    scaler = torch.amp.GradScaler(device.type, enabled=amp == "float16")
    tokens = torch.randint(vocabulary, (batch_size, length), device=device)
    labels = torch.randint(vocabulary, (batch_size, length), device=device)
    padding = causal = None
    if mask == "padding":
        padding = torch.arange(length, device=device).expand(batch_size, length) >= length - length // 8
    elif mask == "causal":
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=device)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=getattr(torch, amp or "float16"), enabled=amp is not None):
            hidden = embed(tokens) + positions
            hidden = encoder(hidden, mask=causal, src_key_padding_mask=padding, is_causal=causal is not None)
            loss = F.cross_entropy(head(hidden).flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
