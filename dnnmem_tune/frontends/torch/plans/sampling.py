"""Pooling, resizing and padding: copies of gradients that have gaps.

Source: ``UpSampleNearest2d.cu``, ``AveragePool2d.cu``, ``DilatedMaxPool2d.cu``,
``ReflectionPad.cu`` and their neighbours in ``aten/src/ATen/native/cuda``, torch 2.13. Orders were
compared with the CUDA build of PyTorch 2.14.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from dnnmem_tune.frontends.torch.plans.registry import Action, Output, memory_plan
from dnnmem_tune.frontends.torch.plans.temporaries import Temporaries, dense_bytes

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@memory_plan(
    aten.upsample_nearest1d_backward.default,
    aten.upsample_nearest2d_backward.default,
    aten.upsample_nearest3d_backward.default,
    aten._upsample_nearest_exact2d_backward.default,
    aten.upsample_linear1d_backward.default,
    aten.upsample_bilinear2d_backward.default,
    aten.upsample_trilinear3d_backward.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.max_pool3d_with_indices_backward.default,
    aten.avg_pool2d_backward.default,
    aten.avg_pool3d_backward.default,
    aten._adaptive_avg_pool2d_backward.default,
    aten._adaptive_avg_pool3d_backward.default,
    aten.adaptive_max_pool2d_backward.default,
)
def in_either_format(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """The result, then a copy of a gradient that has gaps."""
    gradient = args[0]
    yield Output(output)
    if not gradient.is_contiguous(memory_format=suggest_memory_format(gradient)):
        yield Temporaries().take(dense_bytes(gradient))


@memory_plan(aten.upsample_bicubic2d_backward.default, aten.reflection_pad2d_backward.default)
def channels_first(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """The result, then a copy of a gradient that is not contiguous with channels first."""
    yield Output(output)
    if not args[0].is_contiguous():
        yield Temporaries().take(dense_bytes(args[0]))


@memory_plan(aten.reflection_pad2d.default)
def reflection_pad(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """The result, then a copy of an input that is not contiguous with channels first."""
    yield Output(output)
    if not args[0].is_contiguous():
        yield Temporaries().take(dense_bytes(args[0]))
