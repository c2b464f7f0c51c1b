"""Sums, means, norms, extremes and moments: the result, a converted input, the kernel's scratch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.plans.registry import Action, Give, Output, Take, memory_plan
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.operators.reduction import Reduction

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten

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
        self.num_taken = 0

    def take(self, nbytes: int) -> Take:
        """Return the request for a temporary of ``nbytes``; its number is ``last``."""
        self.num_taken += 1
        return Take(Polynomial(nbytes))

    @property
    def last(self) -> int:
        """Number of the latest block."""
        return self.num_taken - 1

    def give(self, number: int) -> Give:
        """Return that block ``number`` is given back."""
        return Give(number)

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
            self.num_taken += 1
            yield Take(reduction.request(what))
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


def _dims(value: Any) -> list[int] | None:
    if value is None:
        return None
    return [value] if isinstance(value, int) else list(value)


def _reduces(arithmetic: Arithmetic, position: int | None) -> Any:
    """Return the plan of an operator whose dimensions are its ``position``-th argument."""

    def plan(_recorder: Recorder, args: Any, kwargs: Any, output: Any) -> Iterator[Action]:
        results = output if isinstance(output, tuple) else (output,)
        for result in results:
            yield Output(result)
        value = kwargs.get("dim") if position is None or len(args) <= position else args[position]
        dims = _dims(value)
        yield from Temporaries().reduction(args[0], dims, arithmetic, results[0].dtype, result=results[0])

    return plan


for _arithmetic, _position, _overloads in (
    (SUM, None, (aten.sum.default, aten.mean.default, aten.prod.default)),
    (SUM, 1, (aten.sum.dim_IntList, aten.mean.dim, aten.prod.dim_int, aten.nansum.default)),
    (NORM, 2, (aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim)),
    (NORM, None, (aten.norm.Scalar,)),
    (EXTREME, 1, (aten.amax.default, aten.amin.default)),
    (EXTREME, None, (aten.max.default, aten.min.default)),
    (EXTREMES, 1, (aten.aminmax.default,)),
    (WITH_INDEX, 1, (aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default)),
    (LOGICAL, None, (aten.any.default, aten.all.default)),
    (LOGICAL, 1, (aten.any.dim, aten.all.dim, aten.any.dims, aten.all.dims)),
    (MOMENTS, 1, (aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction)),
):
    memory_plan(*_overloads)(_reduces(_arithmetic, _position))


@memory_plan(aten.logsumexp.default)
def logsumexp(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """The largest values, the shifted exponentials, their sum.

    Source: ``logsumexp_out_impl`` in ``aten/src/ATen/native/ReduceOps.cpp``, torch 2.13.
    """
    source, dims = args[0], _dims(args[1])
    scratch = Temporaries()
    yield Output(output)
    yield scratch.take(output.numel() * output.element_size())
    largest = scratch.last
    yield from scratch.reduction(source, dims, EXTREME, output.dtype)
    yield scratch.take(output.numel() * output.element_size())
    yield scratch.take(output.numel())
    yield Give(scratch.last)
    yield Give(scratch.last - 1)
    yield scratch.take(source.numel() * output.element_size())
    exponentials = scratch.last
    yield from scratch.reduction(source, dims, SUM, output.dtype)
    yield Give(exponentials)
    yield Give(largest)


@memory_plan(aten._foreach_norm.Scalar)
def foreach_norm(_recorder: Recorder, args: Any, kwargs: Any, output: Any) -> Iterator[Action]:
    """A partial norm for each chunk of each tensor, then the norms.

    Source: ``foreach_tensor_norm_cuda`` in ``aten/src/ATen/native/cuda/ForeachReduceOp.cu``
    (chunks of ``kChunkSize``), torch 2.13.
    """
    tensors = args[0]
    largest = max(tensor.numel() for tensor in tensors)
    chunks = max(1, -(-largest // _CHUNK_ELEMENTS))
    dtype = kwargs.get("dtype") or tensors[0].dtype
    yield Take(Polynomial(len(tensors) * chunks * _at_least_single(dtype)))
    for norm in output:
        yield Output(norm)


_CHUNK_ELEMENTS = 65536
