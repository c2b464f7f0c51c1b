"""Operators whose answer depends on values that a trace does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dnnmem_tune.frontends.torch import values
from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@intercept(aten._local_scalar_dense.default)
def read_scalar(recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """``item()``: the value where it is known, else a zero that is reported."""
    tensor = args[0]
    value = values.known_value(tensor)
    if value is not None:
        with _disable_current_modes():
            return value.item()
    if tensor.device.type == "cuda":
        recorder.host_reads.note()
    if tensor.dtype is torch.bool:
        return False
    if tensor.is_complex():
        return 0j
    return 0.0 if tensor.is_floating_point() else 0


@intercept(aten.nonzero.default)
def bound_nonzero(recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """``nonzero``, ``masked_select``, boolean masks: at most every element is selected."""
    tensor = args[0]
    value = values.known_value(tensor)
    count = tensor.numel()
    if value is not None:
        with _disable_current_modes():
            count = int(torch.count_nonzero(value))
    else:
        recorder.host_reads.bound("aten::nonzero")
    return torch.empty((tensor.dim(), count), dtype=torch.long, device=tensor.device).t()


@intercept(aten.masked_select.default)
def bound_masked_select(recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """At most every element of the broadcast operands is selected."""
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    recorder.host_reads.bound("aten::masked_select")
    return args[0].new_empty(shape.numel())
