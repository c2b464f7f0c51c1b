"""Blocks that a plan takes and gives back, and the scratch of reduction kernels among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from dnnmem_tune.frontends.torch.plans.registry import Action, Give, Take
from dnnmem_tune.ir.size import Polynomial, Size
from dnnmem_tune.ir.trace import Category
from dnnmem_tune.operators.reduction import Reduction

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a family of reductions keeps for each output.

    Source: ``Reduce*Kernel.cu`` in ``aten/src/ATen/native/cuda``, and the sizes recorded from
    the CUDA build of PyTorch 2.14.1 in ``tests/recorded/kernel_scratch_reductions.json``.
    """

    partial_bytes: Callable[[torch.dtype], int]
    """Type of the input as the kernel reads it -> bytes of one partial result."""

    accumulates_in_result: bool = True
    """Whether parts of an output can meet in a result of a full-precision type."""

    converts: bool = True
    """Whether an input of another type than the result is converted first, half to single aside."""


def _at_least_single(dtype: torch.dtype) -> int:
    return max(4, dtype.itemsize) if dtype.is_floating_point else dtype.itemsize


def _real_at_least_single(dtype: torch.dtype) -> int:
    return _at_least_single(dtype) // (2 if dtype.is_complex else 1)


SUM = Arithmetic(_at_least_single)
NORM = Arithmetic(_real_at_least_single, converts=False)
EXTREME = Arithmetic(lambda dtype: dtype.itemsize, converts=False)
EXTREMES = Arithmetic(lambda dtype: 2 * dtype.itemsize, converts=False)
WITH_INDEX = Arithmetic(lambda _dtype: 16, accumulates_in_result=False, converts=False)
LOGICAL = Arithmetic(lambda _dtype: 1, converts=False)
MOMENTS = Arithmetic(
    lambda dtype: 32 if dtype.itemsize == 8 and not dtype.is_complex else 16,
    accumulates_in_result=False,
    converts=False,
)
"""``WelfordData``: mean, sum of squares, two counts."""


class Temporaries:
    """Hands out actions and remembers how many blocks one plan has taken.

    ``Give`` names the plan's n-th ``Take``: a plan that calls others must count across them.
    """

    def __init__(self) -> None:
        self._num_taken = 0

    def take(self, nbytes: int) -> Take:
        """Return the request for a temporary of ``nbytes``; its number is ``last``."""
        return self.request(Polynomial(nbytes))

    def request(self, size: Size, category: Category = Category.TEMPORARY, *, optional: bool = False) -> Take:
        """Return the request for a block of any size; its number is ``last``."""
        self._num_taken += 1
        return Take(size, category, optional)

    @property
    def last(self) -> int:
        """Number of the latest block."""
        return self._num_taken - 1

    def reduction(
        self,
        source: torch.Tensor,
        dims: Collection[int] | None,
        arithmetic: Arithmetic,
        result_dtype: torch.dtype,
        *,
        result: torch.Tensor | None = None,
    ) -> Iterator[Action]:
        """Yield what one reduction kernel takes and gives back, its result aside.

        Args:
            source: What is reduced, or a tensor of its shape, strides and type.
            dims: Dimensions that are reduced; none or an empty one for all.
            arithmetic: The family of the operator.
            result_dtype: Type of the result.
            result: The result where its strides are not those of a contiguous one.

        """
        taken = []
        dtype, strides, offset = source.dtype, source.stride(), int(source.storage_offset())
        lowered = dtype in _HALF and result_dtype is torch.float32
        if arithmetic.converts and dtype is not result_dtype and not lowered:
            dtype, offset = result_dtype, 0
            strides = torch.empty_like(source, device="meta").stride()
            yield self.take(source.numel() * dtype.itemsize)
            taken.append(self.last)
        rank = source.dim()
        reduced = {dim % rank for dim in dims} if dims and rank else set(range(rank))
        reduction = Reduction(
            shape=tuple(source.shape),
            strides=tuple(strides),
            result_strides=_result_strides(source.shape, reduced, result),
            offset=offset,
            element_bytes=dtype.itemsize,
            result_bytes=result_dtype.itemsize,
            partial_bytes=arithmetic.partial_bytes(dtype),
            accumulates_in_result=arithmetic.accumulates_in_result and result_dtype not in _HALF,
        )
        for what in ("accumulator", "buffer", "semaphores"):
            if what == "accumulator" and reduction.accumulates_in_result:
                continue
            yield self.request(reduction.request(what))
            taken.append(self.last)
        for number in reversed(taken):
            yield Give(number)


def _result_strides(
    shape: Sequence[int], reduced: Collection[int], result: torch.Tensor | None
) -> tuple[int, ...]:
    """Return the result's stride for each dimension of the input; 0 where it is reduced."""
    kept = [dim for dim in range(len(shape)) if dim not in reduced]
    if result is not None and result.dim() == len(shape):
        strides = {dim: result.stride(dim) for dim in kept}
    elif result is not None and result.dim() == len(kept):
        strides = dict(zip(kept, result.stride(), strict=True))
    else:
        strides = {dim: math.prod(shape[later] for later in kept if later > dim) for dim in kept}
    return tuple(strides.get(dim, 0) for dim in range(len(shape)))


def dense_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a copy of ``tensor`` without gaps."""
    return tensor.numel() * tensor.element_size()
