"""Normalisations whose gradients fake tensors lay out otherwise than CUDA kernels do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@intercept(aten.native_layer_norm_backward.default)
def layer_norm_backward(_recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """The gradient of the input is contiguous, whatever the input's strides are.

    Source: ``layer_norm_backward_cuda`` in ``aten/src/ATen/native/cuda/layer_norm_kernel.cu``, torch 2.14.
    """
    grad_input, *grad_parameters = func(*args, **kwargs)
    if grad_input is not None and not grad_input.is_contiguous():
        grad_input = grad_input.new_empty(grad_input.shape)
    return grad_input, *grad_parameters
