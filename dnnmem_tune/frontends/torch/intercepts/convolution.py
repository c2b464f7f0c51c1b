"""Convolutions: results in the memory format of the CUDA kernels.

The CPU build lays them out as its own kernels would: a channels-last network would be
traced with contiguous activations, and its weight gradients copied to the weights' format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.convolution import Convolution, convolution_of
from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@intercept(aten.convolution.default)
def convolution(_recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """The output."""
    output = func(*args, **kwargs)
    if output.device.type != "cuda":
        return output
    inputs, weight, _bias, stride, _padding, dilation, transposed, _output_padding, groups = args
    return _laid_out(output, convolution_of(inputs, weight, stride, dilation, transposed, groups))


@intercept(aten.convolution_backward.default)
def convolution_backward(_recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """The gradients of input and weight; a bias's has one dimension."""
    outputs = func(*args, **kwargs)
    if args[0].device.type != "cuda":
        return outputs
    _grad, inputs, weight, _sizes, stride, _padding, dilation, transposed, _output_padding, groups, _mask = args
    call = convolution_of(inputs, weight, stride, dilation, transposed, groups)
    gradients = [None if gradient is None else _laid_out(gradient, call) for gradient in outputs[:2]]
    return (*gradients, outputs[2])


def _laid_out(tensor: torch.Tensor, call: Convolution) -> torch.Tensor:
    if call.is_laid_out(tensor):
        return tensor
    layout = call.layout if call.backend == "cudnn" else torch.contiguous_format
    return torch.empty_like(tensor, memory_format=layout)
