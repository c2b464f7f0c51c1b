"""Composite operators that take another branch for tensor subclasses or for the CPU.

Each runs what its C++ body runs for ordinary tensors on a CUDA device.

Source: files of ``aten/src/ATen/native``, torch 2.13, named at each function.
"""

from __future__ import annotations

import math
from typing import Any

import torch

aten = torch.ops.aten


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """``Linear.cpp``: the bias is added in place where the product cannot take it."""
    if bias is None or inputs.dim() <= 2 or inputs.is_contiguous() or weight.dim() != 2:
        return aten.linear.default.decompose(inputs, weight, bias)
    output = torch.matmul(inputs, weight.t())
    return output.add_(bias)


def one_hot(indices: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """``Onehot.cpp``: ones are scattered into zeros."""
    if num_classes == -1:
        num_classes = int(indices.max().item()) + 1
    result = torch.zeros((*indices.shape, num_classes), dtype=torch.long, device=indices.device)
    result.scatter_(-1, indices.unsqueeze(-1), 1)
    return result


def group_norm(
    inputs: torch.Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    _cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    """``group_norm.cpp``: the kernel copies an input with gaps for itself, and that copy is not kept."""
    batch, channels = inputs.shape[:2]
    extent = math.prod(inputs.shape[2:])
    return aten.native_group_norm(inputs, weight, bias, batch, channels, extent, num_groups, eps)[0]
