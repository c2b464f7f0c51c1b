"""Convolutions: copies into the kernels' memory format, workspaces, the bias gradient.

Source: ``aten/src/ATen/native/cudnn/ConvShared.cpp`` (cuDNN), ``DepthwiseConv2d.cu`` and
``DepthwiseConv3d.cu`` in ``aten/src/ATen/native/cuda``, ``convolution_backward`` in
``aten/src/ATen/native/Convolution.cpp``, torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.convolution import Convolution, convolution_of
from dnnmem_tune.frontends.torch.plans.registry import Action, Give, Output, Take, memory_plan
from dnnmem_tune.frontends.torch.plans.temporaries import SUM, Temporaries, dense_bytes
from dnnmem_tune.ir.trace import Category
from dnnmem_tune.operators.convolution import Direction, convolution_scratch

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@memory_plan(aten.convolution.default)
def convolution(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """An input of another format is copied, the output allocated, then the weight copied."""
    inputs, weight, _bias, stride, _padding, dilation, transposed, _output_padding, groups = args
    call = convolution_of(inputs, weight, stride, dilation, transposed, groups)
    temporaries = Temporaries()
    if not call.is_laid_out(inputs):
        yield temporaries.take(dense_bytes(inputs))
    yield Output(output)
    if call.backend != "cudnn":
        return
    if not call.is_laid_out(weight):
        yield temporaries.take(dense_bytes(weight))
    direction = Direction.DATA_GRADIENT if transposed else Direction.FORWARD
    yield _workspace(call, direction, call.with_extents(output.shape), temporaries)


@memory_plan(aten.convolution_backward.default)
def convolution_backward(_recorder: Recorder, args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """The gradients of input, weight and bias, one after the other."""
    gradient, inputs, weight, _sizes, stride, _padding, dilation, transposed, _output_padding, groups, _mask = args
    call = convolution_of(inputs, weight, stride, dilation, transposed, groups)
    temporaries = Temporaries()
    if call.backend == "cudnn":
        yield from _cudnn_backward(call, gradient, weight, output, temporaries)
    else:
        yield from _depthwise_backward(call, gradient, output, temporaries)
    if output[2] is not None:
        yield Output(output[2])
        others = [dim for dim in range(gradient.dim()) if dim != 1]
        yield from temporaries.reduction(gradient, others, SUM, output[2].dtype)


def _cudnn_backward(
    call: Convolution, gradient: torch.Tensor, weight: torch.Tensor, output: Any, temporaries: Temporaries
) -> Iterator[Action]:
    """A gradient of another format is copied once; one with gaps before each of the two kernels."""
    in_format = call.is_laid_out(gradient)
    copied_first = not in_format and (call.transposed or call.is_of_another_format(gradient))
    copied_each_time = not in_format and not copied_first
    held = []
    if not call.is_laid_out(call.inputs):
        yield temporaries.take(dense_bytes(call.inputs))
        held.append(temporaries.last)
    if copied_first:
        yield temporaries.take(dense_bytes(gradient))
        held.append(temporaries.last)
    output_shape = call.with_extents(gradient.shape)
    for index, direction in enumerate((Direction.DATA_GRADIENT, Direction.FILTER_GRADIENT)):
        if output[index] is None:
            continue
        taken = []
        filter_gradient = direction is Direction.FILTER_GRADIENT
        if not filter_gradient:
            yield Output(output[0])
        if copied_each_time:
            yield temporaries.take(dense_bytes(gradient))
            taken.append(temporaries.last)
        if filter_gradient:
            yield Output(output[1])
        elif not call.is_laid_out(weight):
            yield temporaries.take(dense_bytes(weight))
            taken.append(temporaries.last)
        if call.transposed and not filter_gradient:
            direction = Direction.FORWARD
        yield _workspace(call, direction, output_shape, temporaries)
        taken.append(temporaries.last)
        for number in reversed(taken):
            yield Give(number)
    for number in reversed(held):
        yield Give(number)


def _depthwise_backward(
    call: Convolution, gradient: torch.Tensor, output: Any, temporaries: Temporaries
) -> Iterator[Action]:
    """In two dimensions the weight's gradient comes first; in three each kernel copies for itself."""
    planar = call.backend == "depthwise2d"
    copied = not gradient.is_contiguous()
    if planar and copied:
        yield temporaries.take(dense_bytes(gradient))
    gradient_copy = temporaries.last
    if not planar and output[0] is not None:
        yield Output(output[0])
    if output[1] is not None:
        if not call.inputs.is_contiguous():
            yield temporaries.take(dense_bytes(call.inputs))
            yield Output(output[1])
            yield Give(temporaries.last)
        yield Output(output[1])
    if planar and output[0] is not None:
        yield Output(output[0])
    if copied and not planar:
        yield temporaries.take(dense_bytes(gradient))
        yield Give(temporaries.last)
    elif copied:
        yield Give(gradient_copy)


def _workspace(
    call: Convolution, direction: Direction, output_shape: tuple[int, ...], temporaries: Temporaries
) -> Take:
    """A transposed convolution is another one's gradient: its output plays the input."""
    shapes = (output_shape, call.input_shape) if call.transposed else (call.input_shape, output_shape)
    scratch = convolution_scratch(
        direction,
        input_shape=shapes[0],
        weight_shape=call.weight_shape,
        output_shape=shapes[1],
        stride=call.stride,
        groups=call.groups,
        dtype=str(call.inputs.dtype).removeprefix("torch."),
        itemsize=call.inputs.element_size(),
        channels_last=call.layout is not torch.contiguous_format,
    )
    return temporaries.request(scratch, Category.WORKSPACE, optional=True)
