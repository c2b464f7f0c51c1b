"""Which kernels a convolution takes on a CUDA device, and in which memory format.

Source: ``ConvParams`` and ``_select_conv_backend`` in ``aten/src/ATen/native/Convolution.cpp``,
``cudnn_conv_suggest_memory_format`` in ``aten/src/ATen/native/ConvUtils.h``, torch 2.13. Orders
and formats were compared with the CUDA build of PyTorch 2.14.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

_MIN_CUDNN_DEPTHWISE_CHANNELS = 32
_MIN_CUDNN_DEPTHWISE_WIDTH = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One call of a convolution, in the shapes that its kernels see: one-dimensional ones as two-dimensional."""

    inputs: torch.Tensor
    """As the caller gave it."""

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    groups: int

    backend: str
    """``cudnn``, ``depthwise2d`` or ``depthwise3d``."""

    layout: torch.memory_format
    """Format in which the kernels read and write."""

    def with_extents(self, shape: torch.Size) -> tuple[int, ...]:
        """Return the shape of another tensor of the call as the kernels see it."""
        return _as_2d(tuple(shape)) if self.inputs.dim() == 3 else tuple(shape)

    def is_laid_out(self, tensor: torch.Tensor) -> bool:
        """Whether the kernels can read ``tensor`` as it lies."""
        if tensor.dim() == 3 or self.backend != "cudnn":
            return tensor.is_contiguous()
        return tensor.is_contiguous(memory_format=self.layout)

    def is_of_another_format(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` lies in an order of dimensions other than the kernels'."""
        if tensor.dim() == 3:  # as two-dimensional, with an extent of 1 before the last
            return suggest_memory_format(tensor.unsqueeze(2)) != self.layout
        return suggest_memory_format(tensor) != self.layout


def convolution_of(
    inputs: torch.Tensor, weight: torch.Tensor, stride: Any, dilation: Any, transposed: bool, groups: int
) -> Convolution:
    """Return what is decided from the arguments of ``aten::convolution`` or its backward."""
    is_1d = inputs.dim() == 3
    rank = inputs.dim() - 2
    strides, dilations = _per_dimension(stride, rank), _per_dimension(dilation, rank)
    if is_1d:
        strides, dilations = (1, *strides), (1, *dilations)
    input_shape, weight_shape = tuple(inputs.shape), tuple(weight.shape)
    if is_1d:
        input_shape, weight_shape = _as_2d(input_shape), _as_2d(weight_shape)
    layout = _cudnn_layout(inputs, weight)
    backend = "cudnn"
    if _is_depthwise(input_shape, weight_shape, transposed, groups) and layout is torch.contiguous_format:
        half = inputs.dtype is torch.float16 and weight.dtype is torch.float16
        if not (half and _cudnn_takes_depthwise(input_shape, weight_shape, strides, dilations)):
            backend = f"depthwise{len(input_shape) - 2}d"
    return Convolution(
        inputs=inputs, input_shape=input_shape, weight_shape=weight_shape, stride=strides, dilation=dilations,
        transposed=transposed, groups=groups, backend=backend, layout=layout,
    )  # fmt: skip


def _cudnn_layout(inputs: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Channels last where either operand lies so, but in double precision; never for one dimension."""
    if inputs.dim() == 3 or torch.float64 in (inputs.dtype, weight.dtype):
        return torch.contiguous_format
    for tensor in (inputs, weight):
        suggested = suggest_memory_format(tensor)
        if suggested is not torch.contiguous_format:
            return suggested
    return torch.contiguous_format


def _is_depthwise(
    input_shape: tuple[int, ...], weight_shape: tuple[int, ...], transposed: bool, groups: int
) -> bool:
    return (
        not transposed
        and len(input_shape) in (4, 5)
        and input_shape[1] == groups > 1
        and weight_shape[0] % input_shape[1] == 0
    )


def _cudnn_takes_depthwise(
    input_shape: tuple[int, ...], weight_shape: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> bool:
    """``use_cudnn_depthwise`` in contiguous half precision, from cuDNN 8.2 on."""
    if len(input_shape) != 4 or set(dilation) != {1}:
        return False
    batch, channels, height, width = input_shape
    if channels < _MIN_CUDNN_DEPTHWISE_CHANNELS or (stride[0] != stride[1] and height != 1):
        return False
    if height == 1 and stride[1] == 1:
        return True
    size = weight_shape[3]
    if weight_shape[2] != size or size not in (1, 3, 5) or width < _MIN_CUDNN_DEPTHWISE_WIDTH:
        return False
    if stride[1] == 1:
        return True
    if stride[1] != 2:
        return False
    if batch == 1:
        return size != 1 or width <= 28
    if size == 1:
        return batch <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)


def _per_dimension(value: Any, rank: int) -> tuple[int, ...]:
    numbers = tuple(value)
    return numbers * rank if len(numbers) == 1 else numbers


def _as_2d(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], 1, *shape[2:])
