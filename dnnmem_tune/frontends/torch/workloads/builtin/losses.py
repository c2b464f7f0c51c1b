"""Losses that are more than one function of ``torch.nn.functional``."""

from __future__ import annotations

import torch
from torch.nn import functional


def token_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over all positions; the classes are the last axis of ``logits``."""
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))
