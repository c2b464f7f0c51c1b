"""CTC loss as a CUDA run calls it.

Source: ``ctc_loss`` in ``aten/src/ATen/native/LossCTC.cpp``, torch 2.13.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


def ctc_loss(
    log_probabilities: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor,
    blank: int = 0, reduction: int = 1, zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """``aten::ctc_loss.Tensor``: a CUDA run reads the lengths on the host; a tensor subclass would not."""
    return aten.ctc_loss.IntList(
        log_probabilities,
        targets,
        input_lengths.tolist(),
        target_lengths.tolist(),
        blank,
        reduction,
        zero_infinity,
    )
