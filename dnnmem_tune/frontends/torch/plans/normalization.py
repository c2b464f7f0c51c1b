"""Layer, RMS, batch and group norm: copies, statistics and the partial sums of weight gradients.

Source: ``layer_norm_kernel.cu``, ``Normalization.cu`` and ``group_norm_kernel.cu`` in
``aten/src/ATen/native/cuda``, ``BatchNorm.cpp`` in ``aten/src/ATen/native/cudnn``, torch 2.13.
Orders were compared with the CUDA build of PyTorch 2.14.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from dnnmem_tune.frontends.torch.plans.registry import Action, Give, Output, Take, memory_plan
from dnnmem_tune.frontends.torch.plans.temporaries import Temporaries, dense_bytes
from dnnmem_tune.operators.normalization import batch_norm_scratch, layer_norm_scratch

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten

_ACCUMULATED_BYTES = 4


@memory_plan(aten.native_layer_norm.default, aten._fused_rms_norm.default)
def layer_norm(_recorder: Recorder, args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """An input with gaps is copied while the kernel runs."""
    if not args[0].is_contiguous():
        yield Temporaries().take(dense_bytes(args[0]))
    for tensor in output:
        yield Output(tensor)


@memory_plan(aten.native_layer_norm_backward.default)
def layer_norm_backward(_recorder: Recorder, args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """Gradients of input, weight and bias."""
    yield from _row_norm_backward(args[0], args[1], args[2], output)


@memory_plan(aten._fused_rms_norm_backward.default)
def rms_norm_backward(_recorder: Recorder, args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """Gradients of input and weight."""
    yield from _row_norm_backward(args[0], args[1], args[2], output)


def _row_norm_backward(
    gradient: torch.Tensor, inputs: torch.Tensor, normalized_shape: Any, output: Any
) -> Iterator[Action]:
    temporaries = Temporaries()
    columns = math.prod(normalized_shape)
    rows = inputs.numel() // columns
    if not inputs.is_contiguous():
        yield temporaries.take(dense_bytes(inputs))
    for tensor in output:
        if tensor is not None:
            yield Output(tensor)
    if not gradient.is_contiguous():
        yield temporaries.take(dense_bytes(gradient))
    weights = [tensor for tensor in output[1:] if tensor is not None]

    def take(what: str, weight: torch.Tensor) -> Take:
        return temporaries.request(
            layer_norm_scratch(what, rows=rows, columns=columns, element_bytes=weight.element_size())
        )

    for weight in weights:
        yield take("partials", weight)
    for weight in weights:
        # The sum is a new tensor, which takes the place of the one that was allocated above.
        numbers = []
        for what in ("result", "buffer", "semaphores"):
            yield take(what, weight)
            numbers.append(temporaries.last)
        for number in reversed(numbers):
            yield Give(number)


@memory_plan(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def batch_norm(_recorder: Recorder, args: Any, kwargs: Any, output: Any) -> Iterator[Action]:
    """Blocks that share a channel meet in a staging buffer where channels lie last."""
    for tensor in output:
        yield Output(tensor)
    inputs = args[0]
    training = args[5] if len(args) > 5 else kwargs["training"]
    if not training:
        return
    temporaries = Temporaries()
    if _channels_lie_last(inputs):
        yield from _staging(temporaries, inputs, values=4)
    elif not inputs.is_contiguous() and inputs.dtype is not torch.float32:
        yield temporaries.take(inputs.numel() * _ACCUMULATED_BYTES)


@memory_plan(aten.native_batch_norm_backward.default)
def batch_norm_backward(_recorder: Recorder, args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """One fused kernel; or sums first, then the input's gradient, where channels lie last."""
    gradient, inputs, _weight, _mean, _var, save_mean, *_rest = args
    temporaries = Temporaries()
    if not _channels_lie_last(inputs):
        for tensor in output:
            if tensor is not None:
                yield Output(tensor)
        return
    channel_bytes = inputs.size(1) * _ACCUMULATED_BYTES
    if save_mean is None or not save_mean.numel():
        yield temporaries.take(channel_bytes)
    yield temporaries.take(channel_bytes)
    yield temporaries.take(channel_bytes)
    for tensor in output[1:]:
        if tensor is not None:
            yield Output(tensor)
    yield from _staging(temporaries, gradient, values=2)
    if output[0] is not None:
        yield Output(output[0])


@memory_plan(aten.cudnn_batch_norm_backward.default)
def cudnn_batch_norm_backward(_recorder: Recorder, args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """A gradient of another format than the input is copied."""
    inputs, gradient = args[0], args[1]
    if not gradient.is_contiguous(memory_format=suggest_memory_format(inputs)):
        yield Temporaries().take(dense_bytes(gradient))
    for tensor in output:
        yield Output(tensor)


@memory_plan(aten.native_group_norm.default)
def group_norm(_recorder: Recorder, args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """Scale and shift of each sample's channels; statistics once more in single precision for half types."""
    inputs, weight, bias, batch, channels, extent, groups, _eps = args
    temporaries = Temporaries()
    for tensor in output:
        yield Output(tensor)
    if not inputs.is_contiguous():
        yield temporaries.take(dense_bytes(inputs))
    if extent == 1 or (weight is None and bias is None):
        return
    if output[1].element_size() < _ACCUMULATED_BYTES:
        yield temporaries.take(batch * groups * _ACCUMULATED_BYTES)
        yield temporaries.take(batch * groups * _ACCUMULATED_BYTES)
    yield temporaries.take(batch * channels * _ACCUMULATED_BYTES)
    yield temporaries.take(batch * channels * _ACCUMULATED_BYTES)


@memory_plan(aten.native_group_norm_backward.default)
def group_norm_backward(_recorder: Recorder, args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """Sums of each sample's channels, then factors of each group."""
    gradient, inputs, _mean, _rstd, weight, batch, channels, _extent, groups, _mask = args
    temporaries = Temporaries()
    for tensor in (inputs, gradient):
        if not tensor.is_contiguous():
            yield temporaries.take(dense_bytes(tensor))
    for tensor in output:
        if tensor is not None:
            yield Output(tensor)
    sizes = [channels, channels]
    if output[0] is not None:
        sizes += [groups, groups]
        if weight is not None:
            sizes.append(channels)
    for size in sizes:
        yield temporaries.take(batch * size * _ACCUMULATED_BYTES)


def _channels_lie_last(inputs: torch.Tensor) -> bool:
    """``batch_norm_use_channels_last_kernels``."""
    if inputs.is_contiguous():
        return inputs.stride(1) == 1
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(inputs.dim())
    return layout is not None and inputs.is_contiguous(memory_format=layout)


def _staging(temporaries: Temporaries, tensor: torch.Tensor, *, values: int) -> Iterator[Action]:
    channels = tensor.size(1)
    for what in ("staging", "semaphores"):
        yield temporaries.request(
            batch_norm_scratch(what, rows=tensor.numel() // channels, channels=channels, values=values)
        )
    yield Give(temporaries.last)
    yield Give(temporaries.last - 1)
