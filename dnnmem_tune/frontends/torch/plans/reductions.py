"""Sums, means, norms, extremes and moments: the result, a converted input, the kernel's scratch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.plans.registry import Action, Give, Output, Take, memory_plan
from dnnmem_tune.frontends.torch.plans.temporaries import (
    EXTREME,
    EXTREMES,
    LOGICAL,
    MOMENTS,
    NORM,
    SUM,
    WITH_INDEX,
    Arithmetic,
    Temporaries,
)
from dnnmem_tune.ir.size import Polynomial

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


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
    nbytes = output.numel() * output.element_size()
    yield scratch.take(nbytes)
    yield from scratch.reduction(source, dims, EXTREME, output.dtype)
    yield scratch.take(nbytes)
    yield scratch.take(output.numel())
    yield Give(scratch.last)
    yield Give(scratch.last - 1)
    yield scratch.take(source.numel() * output.element_size())
    yield Output(output)
    yield from scratch.reduction(source, dims, SUM, output.dtype)


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
    yield Take(Polynomial(len(tensors) * chunks * max(4, dtype.itemsize)))
    for norm in output:
        yield Output(norm)


_CHUNK_ELEMENTS = 65536


@memory_plan(aten._thnn_fused_gru_cell_backward.default, aten._thnn_fused_lstm_cell_backward_impl.default)
def cell_backward(_recorder: Recorder, _args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """Gradients of the gates and states, then those of the biases, which are sums over the batch.

    Source: ``_thnn_fused_gru_cell_backward_cuda`` and ``_thnn_fused_lstm_cell_backward_impl_cuda`` in
    ``aten/src/ATen/native/cuda/RNN.cu``, torch 2.13.
    """
    gates = output[0]
    temporaries = Temporaries()
    for tensor in output:
        if tensor is None:
            continue
        yield Output(tensor)
        if tensor.dim() == 1:
            yield from temporaries.reduction(gates, [0], SUM, tensor.dtype, result=tensor)
