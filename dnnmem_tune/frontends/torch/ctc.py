"""CTC loss as a CUDA run calls it.

Source: ``ctc_loss`` in ``aten/src/ATen/native/LossCTC.cpp``, torch 2.13.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

_MEAN, _SUM = 1, 2


def ctc_loss(
    log_probabilities: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Any:
    """``aten::ctc_loss.Tensor``: a CUDA run reads the lengths on the host; a tensor subclass would not."""
    lengths = target_lengths.tolist()
    losses = aten._ctc_loss.default(
        log_probabilities, targets, input_lengths.tolist(), lengths, blank, zero_infinity
    )[0]
    if zero_infinity:
        losses = torch.where(losses == float("inf"), torch.zeros((), device=losses.device), losses)
    if reduction == _MEAN:
        return (losses / torch.tensor(lengths, device=losses.device).clamp_min(1)).mean()
    return losses.sum() if reduction == _SUM else losses
