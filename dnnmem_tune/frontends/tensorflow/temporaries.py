"""Buffers that TensorFlow's GPU kernels take while they run (``allocate_temp``), and cuDNN's workspaces.

Source: ``conv_ops_impl.h``, ``conv_ops_fused_impl.h``, ``conv_grad_input_ops.cc`` and
``conv_grad_filter_ops.cc`` in ``tensorflow/core/kernels`` (2.21); the numbers and sizes of these
requests agree with the allocator's own log for VGG16 and ResNet50 in the GPU build.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dnnmem_tune.frontends.tensorflow.recurrent import workspace_bytes
from dnnmem_tune.ir.graph import Workspace
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.operators.convolution import Direction, convolution_scratch

_Shape = tuple[int, ...]


def temporaries(operation: Any) -> tuple[Workspace, ...]:
    """Return what an operator takes besides its outputs, in the order in which it asks for it."""
    rule = _RULES.get(operation.type)
    return rule(operation) if rule is not None else ()


def _forward(operation: Any) -> tuple[Workspace, ...]:
    data, weight = _shape(operation.inputs[0]), _shape(operation.inputs[1])
    output = _shape(operation.outputs[0])
    if data is None or weight is None or output is None or _is_matrix_product(operation, weight):
        return ()
    taken = [_padded(operation, data, weight, output, operation.inputs[0].dtype.size)]
    taken.append(_fixed(operation.inputs[1].dtype.size, weight))
    return (*filter(None, taken), _workspace(operation, Direction.FORWARD, data, weight, output))


def _data_gradient(operation: Any) -> tuple[Workspace, ...]:
    weight, output = _shape(operation.inputs[1]), _shape(operation.inputs[2])
    data = _shape(operation.outputs[0])
    if data is None or weight is None or output is None or _is_matrix_product(operation, weight):
        return ()
    itemsize = operation.inputs[1].dtype.size
    # The gradient is made in a buffer of its own, which then becomes the output.
    made = _padded(operation, data, weight, output, itemsize) or _fixed(itemsize, data)
    return (
        _fixed(itemsize, weight),
        made,
        _workspace(operation, Direction.DATA_GRADIENT, data, weight, output),
    )


def _filter_gradient(operation: Any) -> tuple[Workspace, ...]:
    data, output = _shape(operation.inputs[0]), _shape(operation.inputs[2])
    weight = _shape(operation.outputs[0])
    if data is None or weight is None or output is None or _is_matrix_product(operation, weight):
        return ()
    itemsize = operation.inputs[0].dtype.size
    taken = [_padded(operation, data, weight, output, itemsize), _fixed(itemsize, weight)]
    return (*filter(None, taken), _workspace(operation, Direction.FILTER_GRADIENT, data, weight, output))


def _recurrent(operation: Any) -> tuple[Workspace, ...]:
    if not operation.inputs[0].shape.is_fully_defined():
        return ()
    return (Workspace(size=Polynomial(workspace_bytes(operation))),)


def _is_matrix_product(operation: Any, weight: _Shape) -> bool:
    """Say whether the kernel calls cuBLAS instead of cuDNN: 1 x 1, stride 1, channels last."""
    strides = operation.get_attr("strides")
    return weight[:2] == (1, 1) and _channels_last(operation) and all(stride == 1 for stride in strides)


def _padded(operation: Any, data: _Shape, weight: _Shape, output: _Shape, itemsize: int) -> Workspace | None:
    """Return the copy of the input that is made where one side needs more padding than the other."""
    if operation.get_attr("padding") != b"SAME":
        return None
    strides, dilations = operation.get_attr("strides"), operation.get_attr("dilations")
    axes = (1, 2) if _channels_last(operation) else (2, 3)
    grown = list(data)
    for axis, kernel in zip(axes, weight[:2], strict=True):
        reach = (kernel - 1) * dilations[axis] + 1
        grown[axis] += max(0, (output[axis] - 1) * strides[axis] + reach - data[axis]) % 2
    return _fixed(itemsize, tuple(grown)) if tuple(grown) != data else None


def _workspace(operation: Any, direction: Direction, data: _Shape, weight: _Shape, output: _Shape) -> Workspace:
    """Return cuDNN's own workspace, without which the kernel goes on."""
    last = _channels_last(operation)
    to_first = (0, 3, 1, 2) if last else (0, 1, 2, 3)
    inputs = tuple(data[axis] for axis in to_first)
    strides = operation.get_attr("strides")
    return Workspace(
        size=convolution_scratch(
            direction,
            input_shape=inputs,
            weight_shape=(weight[3], weight[2], *weight[:2]),
            output_shape=tuple(output[axis] for axis in to_first),
            stride=[strides[axis] for axis in to_first[2:]],
            groups=max(1, inputs[1] // weight[2]),
            dtype=operation.inputs[1].dtype.name,
            itemsize=operation.inputs[1].dtype.size,
            channels_last=last and operation.inputs[1].dtype == tf.float16,
        ),
        optional=True,
    )


def _channels_last(operation: Any) -> bool:
    return bool(operation.get_attr("data_format") == b"NHWC")


def _shape(tensor: Any) -> _Shape | None:
    return tuple(tensor.shape.as_list()) if tensor.shape.is_fully_defined() else None


def _fixed(itemsize: int, shape: _Shape) -> Workspace:
    return Workspace(size=Polynomial(itemsize * math.prod(shape)))


_RULES: dict[str, Callable[[Any], tuple[Workspace, ...]]] = {
    "Conv2D": _forward,
    "_FusedConv2D": _forward,
    "Conv2DBackpropInput": _data_gradient,
    "Conv2DBackpropFilter": _filter_gradient,
    "CudnnRNNV3": _recurrent,
    "CudnnRNNBackpropV3": _recurrent,
}
"""Kind -> rule. Depthwise kernels are TensorFlow's own and take nothing."""
