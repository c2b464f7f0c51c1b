"""Matrix products whose meta kernels take fewer types than CUDA does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@intercept(aten._grouped_mm.default)
def grouped_mm(_recorder: Recorder, _func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """One product for each group of rows or columns; rows of the result start at multiples of 16 bytes.

    Source: ``create_grouped_gemm_output_tensor`` in ``aten/src/ATen/native/GroupedMMUtils.h``, torch 2.14;
    the meta kernel of torch 2.13 refuses types other than bfloat16.
    """
    first, second, *rest = args
    groups = rest[0] if rest else kwargs.get("offs")
    shape = [first.size(-2), second.size(-1)]
    if first.dim() == second.dim():
        shape.insert(0, groups.size(0) if first.dim() == 2 else first.size(0))
    dtype = kwargs.get("out_dtype") or first.dtype
    alignment = 16 // dtype.itemsize
    width = -(-shape[-1] // alignment) * alignment
    strides = [width, 1] if len(shape) == 2 else [shape[1] * width, width, 1]
    return torch.empty_strided(shape, strides, dtype=dtype, device=first.device)
