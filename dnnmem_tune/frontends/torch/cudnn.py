"""Composite operators that go to cuDNN on a CUDA device: recurrent networks and batch norm.

Source: ``aten/src/ATen/native/RNN.cpp``, ``aten/src/ATen/native/cudnn/RNN.cpp`` and
``use_cudnn`` in ``aten/src/ATen/native/Normalization.cpp``, torch 2.13.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

_LSTM, _GRU = 2, 3
"""``CUDNN_LSTM`` and ``CUDNN_GRU``."""

_LARGEST_BATCH_FOR_BATCH_NORM = 880801
"""cuDNN's spatial batch norm in training mode fails above."""


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
    operands = (inputs, weight, bias, running_mean, running_var, training, momentum, eps)
    if training and cudnn_enabled and _cudnn_takes_batch_norm(inputs, weight, bias, eps):
        return aten.cudnn_batch_norm(*operands)[0]
    return aten.native_batch_norm(*operands)[0]


def _cudnn_takes_batch_norm(inputs: torch.Tensor, weight: Any, bias: Any, eps: float) -> bool:
    if weight is None or bias is None or inputs.numel() == 0 or inputs.dtype == torch.float64:
        return False
    if inputs.dtype == torch.bfloat16 and not inputs.is_contiguous(memory_format=torch.channels_last):
        return False
    return inputs.size(0) <= _LARGEST_BATCH_FOR_BATCH_NORM and eps >= 1e-5
