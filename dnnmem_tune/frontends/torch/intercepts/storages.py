"""Results whose storage or strides on CUDA are not those that fake tensors give them.

Source: ``col2im_out_cuda_template`` in ``aten/src/ATen/native/cuda/Col2Im.cu`` and
``native_group_norm`` in ``aten/src/ATen/native/group_norm.cpp``, torch 2.13; seen in the CUDA
build of PyTorch 2.14.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@intercept(aten.col2im.default)
def fold(_recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """The result is allocated in the size of the columns, then shrunk; a tensor that shrinks keeps its storage."""
    result = func(*args, **kwargs)
    columns = args[0]
    if result.device.type != "cuda" or columns.numel() <= result.numel():
        return result
    return columns.new_empty(columns.numel()).as_strided(result.shape, result.stride())


@intercept(aten.native_group_norm.default)
def group_norm(_recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """The result is contiguous, whatever the input is."""
    result, *statistics = func(*args, **kwargs)
    if result.device.type == "cuda" and not result.is_contiguous():
        result = torch.empty_like(result, memory_format=torch.contiguous_format)
    return result, *statistics
