"""Operators that fake tensors cannot answer, or answer other than a CUDA run does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dnnmem_tune.frontends.torch import values

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten

Intercept = Callable[["Recorder", Any, Any, Any], Any]

INTERCEPTS: dict[Any, Intercept] = {}
"""Operator overload -> what is run instead of it."""


def intercept(*overloads: Any) -> Callable[[Intercept], Intercept]:
    """Register a function for these operator overloads."""

    def register(function: Intercept) -> Intercept:
        for overload in overloads:
            INTERCEPTS[overload] = function
        return function

    return register


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


@intercept(aten._fused_sgd_.default, aten._fused_sgd_.tensor_lr)
def fused_sgd(_recorder: Recorder, _func: Any, _args: Any, _kwargs: Any) -> None:
    """In place; torch 2.13 has no meta kernel for it."""


@intercept(aten._cudnn_rnn_backward.default)
def cudnn_rnn_backward(_recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """Gradients of cuDNN's RNN; the weight gradients are views of one flat buffer.

    Source: ``_cudnn_rnn_backward`` in ``aten/src/ATen/native/cudnn/RNN.cpp``, torch 2.13.
    """
    inputs, weights, _stride, _flat, hx, cx, *_rest = args
    flat = inputs.new_empty(sum(weight.numel() for weight in weights))
    gradients, offset = [], 0
    for weight in weights:
        gradients.append(flat[offset : offset + weight.numel()].view(weight.shape))
        offset += weight.numel()
    return (
        torch.empty_like(inputs),
        torch.empty_like(hx),
        None if cx is None else torch.empty_like(cx),
        gradients,
    )


@intercept(aten._pin_memory.default)
def pin_memory(_recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """Pinned host memory is host memory."""
    return args[0].clone()


@intercept(aten.is_pinned.default)
def is_pinned(_recorder: Recorder, _func: Any, _args: Any, _kwargs: Any) -> bool:
    """No host tensor of a trace is pinned."""
    return False


@intercept(aten.add.Tensor)
def accumulate_gradient(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Autograd sums gradients in place where it owns the first one alone.

    The engine adds in place unless the tensor is a subclass, which fake tensors are, or is
    used elsewhere. An addition during a backward pass outside every node is the engine's.

    Source: ``can_accumulate_inplace`` and ``accumulate`` in
    ``torch/csrc/autograd/input_buffer.cpp``, torch 2.13.
    """
    total, gradient = args[0], args[1]
    if (
        recorder.attribution.in_backward
        and not kwargs
        and torch._C._current_autograd_node() is None
        and isinstance(total, torch.Tensor)
        and not torch.is_grad_enabled()
        and _owned_alone(total)
    ):
        return aten.add_.Tensor(total, gradient)
    return func(*args, **kwargs)


def _owned_alone(tensor: torch.Tensor) -> bool:
    return False
