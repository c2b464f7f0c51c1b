"""Matrix products: copies of operands that cuBLAS cannot read, and its workspace.

Source: ``prepare_matrix_for_cublas``, ``prepare_batch_matrix_for_cublas`` and their callers
in ``aten/src/ATen/native/cuda/Blas.cpp``, torch 2.14.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.plans.registry import Action, Output, Take, memory_plan
from dnnmem_tune.ir.size import Polynomial

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@memory_plan(aten.mm.default)
def mm(recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """The result, copies of the operands, the workspace of this thread's handle."""
    return _product(recorder, outputs, _matrix_copies(outputs, args[0], args[1]))


@memory_plan(aten.addmm.default, aten.addmm_.default, aten._addmm_activation.default)
def addmm(recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """As ``mm``; what is added is copied into the result or read by cuBLASLt's epilogue."""
    return _product(recorder, outputs, _matrix_copies(outputs, args[1], args[2]))


@memory_plan(aten.bmm.default)
def bmm(recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """As ``mm``, for a batch of matrices."""
    return _product(recorder, outputs, _batch_copies(outputs, args[0], args[1]))


@memory_plan(aten.baddbmm.default, aten.baddbmm_.default)
def baddbmm(recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """As ``bmm``; what is added is copied into the result."""
    return _product(recorder, outputs, _batch_copies(outputs, args[1], args[2]))


@memory_plan(aten._grouped_mm.default)
def grouped_mm(recorder: Recorder, _args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """The result; each group is a product of slices of the operands."""
    return _product(recorder, outputs, iter(()))


def _product(recorder: Recorder, result: torch.Tensor, copied: Iterator[torch.Tensor]) -> Iterator[Action]:
    yield Output(result)
    for tensor in copied:
        yield Take(Polynomial(tensor.numel() * tensor.element_size()))
    if result.numel():
        recorder.take_cublas_workspace()


def _matrix_copies(result: torch.Tensor, *operands: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the operands that are copied: strided in both dimensions, or conjugated but not transposed."""
    transposes_result = result.is_contiguous() if _is_dense(result) else result.stride(0) != 1
    for tensor in reversed(operands) if transposes_result else operands:
        rows, columns = tensor.stride()
        height, width = tensor.shape
        if _is_dense(tensor):
            transposed = tensor.is_contiguous()
        elif rows == 1 and columns >= max(1, height):
            transposed = False
        elif columns == 1 and rows >= max(1, width):
            transposed = True
        else:
            yield tensor
            continue
        if tensor.is_conj() and transposed == transposes_result:
            yield tensor


def _batch_copies(result: torch.Tensor, *operands: torch.Tensor) -> Iterator[torch.Tensor]:
    _batch, height, width = result.shape
    columns_first = result.stride(1) == 1 and (width == 1 or result.stride(2) >= max(1, height))
    transposes_result = not columns_first and result.stride(2) == 1
    first, second = reversed(operands) if transposes_result else operands
    rows, columns = (width, height) if transposes_result else (height, width)
    inner = first.size(1 if transposes_result else 2)
    for tensor, num_rows, num_columns in ((first, rows, inner), (second, inner, columns)):
        fast, leading = (tensor.stride(2), tensor.stride(1)) if transposes_result else tensor.stride()[1:]
        if fast == 1 and leading >= max(1, num_rows):
            copied = tensor.is_conj()
        elif leading == 1 and fast >= max(1, num_columns):
            copied = False
        else:
            copied = (
                not tensor.is_contiguous() or 0 in tensor.stride()[1:] or (tensor.is_conj() and transposes_result)
            )
        if copied:
            yield tensor


def _is_dense(tensor: torch.Tensor) -> bool:
    """``is_non_overlapping_and_dense`` of a matrix."""
    return tensor.is_contiguous() or tensor.t().is_contiguous()
