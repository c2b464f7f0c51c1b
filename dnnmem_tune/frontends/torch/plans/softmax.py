"""Softmax and its backward: contiguous copies, and the product that the backward sums.

Source: ``host_softmax`` and ``softmax_backward_cuda_out`` in
``aten/src/ATen/native/cuda/SoftMax.cu``; ``_safe_softmax`` in
``aten/src/ATen/native/transformers/attention.cpp``; torch 2.14.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import compute_elementwise_output_strides

from dnnmem_tune.frontends.torch.plans.registry import Action, Output, Take, memory_plan
from dnnmem_tune.ir.size import Polynomial

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@memory_plan(aten._softmax.default, aten._log_softmax.default)
def softmax(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """The result, then a contiguous copy of the input."""
    yield Output(outputs)
    yield from _contiguous(args[0])


@memory_plan(aten._safe_softmax.default)
def safe_softmax(_recorder: Recorder, args: Any, kwargs: Any, outputs: Any) -> Iterator[Action]:
    """The result, then which scores are minus infinity, in which rows all are, and the zero for those."""
    scores = args[0]
    dim = args[1] if len(args) > 1 else kwargs["dim"]
    yield Output(outputs)
    yield Take(Polynomial(scores.numel()))
    yield Take(Polynomial(scores.numel() // max(1, scores.size(dim))))
    yield Take(Polynomial(outputs.element_size()))


@memory_plan(aten._softmax_backward_data.default)
def softmax_backward(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """The result, then gradient x output, which takes over gaps and order of the gradient and is copied then."""
    grad, output = args[0], args[1]
    product = torch.result_type(grad, output).itemsize * output.numel()
    yield Output(outputs)
    yield Take(Polynomial(product))
    order = compute_elementwise_output_strides(grad, output)
    if not torch.empty_strided(output.shape, order, device="meta").is_contiguous():
        yield Take(Polynomial(product))
    yield from _contiguous(output)


@memory_plan(aten._log_softmax_backward_data.default)
def log_softmax_backward(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """The result, then contiguous copies of gradient and output."""
    yield Output(outputs)
    for tensor in args[:2]:
        yield from _contiguous(tensor)


def _contiguous(tensor: torch.Tensor) -> Iterator[Take]:
    if not tensor.is_contiguous():
        yield Take(Polynomial(tensor.numel() * tensor.element_size()))
