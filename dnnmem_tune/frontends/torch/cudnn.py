"""Composite operators that go to cuDNN on a CUDA device: recurrent networks and batch norm.

Source: ``aten/src/ATen/native/RNN.cpp``, ``aten/src/ATen/native/cudnn/RNN.cpp`` and
``use_cudnn`` in ``aten/src/ATen/native/Normalization.cpp``, torch 2.13.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten

_LSTM, _GRU = 2, 3
"""``CUDNN_LSTM`` and ``CUDNN_GRU``."""

_LARGEST_BATCH_IN_TRAINING, _LARGEST_BATCH_IN_EVALUATION = 880801, 65535
"""cuDNN's spatial batch norm fails above."""

_LARGEST_32_BIT = 2**31 - 1

_SMALLEST_EPSILON = 1e-5
"""``CUDNN_BN_MIN_EPSILON`` as PyTorch passes it."""


def lstm(
    inputs: torch.Tensor, hx: Any, weights: Any, has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """``aten::lstm.input`` through cuDNN."""
    hidden, cell = hx
    projection = hidden.size(-1) if hidden.size(-1) != cell.size(-1) else 0
    output, hy, cy, _reserve, _weight = aten._cudnn_rnn(
        inputs, weights, 4 if has_biases else 2, _flat_weights(inputs), hidden, cell, _LSTM, cell.size(-1),
        projection, num_layers, batch_first, dropout, train, bidirectional, [], None,
    )  # fmt: skip
    return output, hy, cy


def gru(
    inputs: torch.Tensor, hx: torch.Tensor, weights: Any, has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """``aten::gru.input`` through cuDNN."""
    output, hy, _cy, _reserve, _weight = aten._cudnn_rnn(
        inputs, weights, 4 if has_biases else 2, _flat_weights(inputs), hx, None, _GRU, hx.size(-1),
        0, num_layers, batch_first, dropout, train, bidirectional, [], None,
    )  # fmt: skip
    return output, hy


def _flat_weights(inputs: torch.Tensor) -> torch.Tensor:
    """On CUDA the weights are views of one flat buffer, which ``flatten_parameters`` made."""
    return torch.empty(0, dtype=inputs.dtype, device=inputs.device)


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
