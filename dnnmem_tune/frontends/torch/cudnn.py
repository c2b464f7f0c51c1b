"""Batch norm, which goes to cuDNN on a CUDA device.

Source: ``use_cudnn`` in ``aten/src/ATen/native/Normalization.cpp``, torch 2.13.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten

_LARGEST_BATCH_IN_TRAINING, _LARGEST_BATCH_IN_EVALUATION = 880801, 65535
"""cuDNN's spatial batch norm fails above."""

_LARGEST_32_BIT = 2**31 - 1

_SMALLEST_EPSILON = 1e-5
"""``CUDNN_BN_MIN_EPSILON`` as PyTorch passes it."""


def batch_norm(
    inputs: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    training: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Any:  # fmt: skip
    """``aten::batch_norm`` through cuDNN where ``use_cudnn`` says so."""
    if cudnn_enabled and _cudnn_takes_batch_norm(inputs, weight, bias, training, eps):
        inputs = inputs.contiguous(memory_format=suggest_memory_format(inputs))
        return aten.cudnn_batch_norm(inputs, weight, bias, running_mean, running_var, training, momentum, eps)[0]
    return aten.native_batch_norm(inputs, weight, bias, running_mean, running_var, training, momentum, eps)[0]


def _cudnn_takes_batch_norm(inputs: torch.Tensor, weight: Any, bias: Any, training: bool, eps: float) -> bool:
    """``_select_batch_norm_backend``: a weight in single precision, no bfloat16, three dimensions or more."""
    if weight is None or bias is None or inputs.dim() < 3:
        return False
    if torch.bfloat16 in (inputs.dtype, weight.dtype):
        return False
    if inputs.dtype is torch.float16 and weight.dtype is not torch.float32:
        return False
    largest_batch = _LARGEST_BATCH_IN_TRAINING if training else _LARGEST_BATCH_IN_EVALUATION
    return inputs.size(0) <= largest_batch and inputs.numel() < _LARGEST_32_BIT and eps >= _SMALLEST_EPSILON
