"""Losses whose one number keeps the room of all elements.

The kernels write a loss for each element into the tensor they return and then resize it to
the mean. A tensor that shrinks keeps its storage, so the loss of a training step holds as
much memory as the network's output until it is dropped.

Source: ``mse_loss_out`` in ``aten/src/ATen/native/BinaryOps.cpp``, ``binary_cross_entropy_out_cuda``
in ``aten/src/ATen/native/cuda/Loss.cu``, torch 2.13; seen in the CUDA build of PyTorch 2.14.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@intercept(
    aten.mse_loss.default, aten.smooth_l1_loss.default, aten.binary_cross_entropy.default,
    aten.soft_margin_loss.default,
)  # fmt: skip
def loss_in_the_room_of_all_elements(_recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a scalar at the start of a storage for every element."""
    loss = func(*args, **kwargs)
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    if loss.dim() or loss.device.type != "cuda" or not shape:
        return loss
    return loss.new_empty(shape).as_strided((), ())


@intercept(aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default)
def gradient_of_the_type_of_the_input(_recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """A target of another type does not widen the gradient, which is made by ``zeros_like(input)``."""
    gradient = func(*args, **kwargs)
    inputs = args[1]
    if gradient.dtype is inputs.dtype or gradient.device.type != "cuda":
        return gradient
    return torch.empty_like(inputs)
