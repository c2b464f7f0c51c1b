"""Losses that take memory inside a call.

Source: ``Loss.cpp`` in ``aten/src/ATen/native``, ``Loss.cu`` and ``LossCTC.cu`` in
``aten/src/ATen/native/cuda``, torch 2.13. Orders were compared with the CUDA build of PyTorch 2.14.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.plans.registry import Action, Give, Output, Take, memory_plan
from dnnmem_tune.frontends.torch.plans.temporaries import SUM, Temporaries
from dnnmem_tune.ir.size import Polynomial

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten

NO_REDUCTION, MEAN = 0, 1
"""``at::Reduction``."""


@memory_plan(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def ctc_loss_backward(_recorder: Recorder, args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """The backward variables, as large as the forward ones, live beside the gradient."""
    log_alpha = args[6]
    yield Take(Polynomial(log_alpha.numel() * log_alpha.element_size()))
    yield Output(output)


@memory_plan(aten.mse_loss.default, aten.smooth_l1_loss.default)
def elementwise_loss(_recorder: Recorder, args: Any, kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """The result, which keeps the room of all elements (see the intercepts), the losses, their reduction."""
    yield Output(output)
    if _reduction(args, kwargs, 2) != NO_REDUCTION:
        yield from _reduce_elements(args[0], args[1], output, Temporaries())


@memory_plan(aten.huber_loss.default)
def huber_loss(_recorder: Recorder, args: Any, kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """The losses, then their reduction."""
    if _reduction(args, kwargs, 2) == NO_REDUCTION:
        yield Output(output)
        return
    losses = torch.empty(torch.broadcast_shapes(args[0].shape, args[1].shape), dtype=output.dtype, device="meta")
    temporaries = Temporaries()
    yield temporaries.take(losses.nbytes)
    yield Output(output)
    yield from temporaries.reduction(losses, None, SUM, output.dtype)


@memory_plan(aten.binary_cross_entropy.default, aten.soft_margin_loss.default)
def copied_loss(_recorder: Recorder, args: Any, kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """The losses, their reduction, which is copied to the front of the losses' room."""
    yield Output(output)
    position = 3 if len(args) > 3 else 2
    if _reduction(args, kwargs, position) == NO_REDUCTION:
        return
    temporaries = Temporaries()
    yield temporaries.take(output.element_size())
    losses = torch.empty(args[0].shape, dtype=output.dtype, device="meta")
    yield from temporaries.reduction(losses, None, SUM, output.dtype)


@memory_plan(aten.binary_cross_entropy_with_logits.default)
def cross_entropy_with_logits(
    _recorder: Recorder, args: Any, kwargs: Any, output: torch.Tensor
) -> Iterator[Action]:
    """The logarithm of the sigmoid, its weights, the losses, their reduction."""
    logits, target = args[0], args[1]
    positive = args[3] if len(args) > 3 else kwargs.get("pos_weight")
    temporaries = Temporaries()
    yield temporaries.take(logits.numel() * logits.element_size())
    if positive is not None:
        yield temporaries.take(positive.numel() * positive.element_size())
        yield temporaries.take(target.numel() * torch.result_type(positive, target).itemsize)
        yield Give(1)
        yield Give(2)
    if _reduction(args, kwargs, 4) == NO_REDUCTION:
        yield Output(output)
        return
    losses = torch.empty(target.shape, dtype=target.dtype, device="meta")
    yield temporaries.take(losses.nbytes)
    yield Output(output)
    yield from temporaries.reduction(losses, None, SUM, output.dtype)


def _reduce_elements(
    inputs: torch.Tensor, target: torch.Tensor, output: torch.Tensor, temporaries: Temporaries
) -> Iterator[Action]:
    shape = torch.broadcast_shapes(inputs.shape, target.shape)
    losses = torch.empty(shape, dtype=output.dtype, device="meta")
    yield temporaries.take(losses.nbytes)
    yield from temporaries.reduction(losses, None, SUM, output.dtype)


def _reduction(args: Any, kwargs: Any, position: int) -> int:
    value = args[position] if len(args) > position else kwargs.get("reduction", MEAN)
    return int(value)
