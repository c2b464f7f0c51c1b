"""Embeddings, indexing, sorting and scans: sorted indices, partial sums, copies.

Source: ``Embedding.cu``, ``EmbeddingBackwardKernel.cu``, ``EmbeddingBag.cu``, ``Indexing.cu``,
``Sort.cpp`` and ``Im2Col.cu`` in ``aten/src/ATen/native/cuda``, torch 2.13. Orders were compared
with the CUDA build of PyTorch 2.14.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.plans.registry import Action, Give, Output, Take, memory_plan
from dnnmem_tune.frontends.torch.plans.temporaries import Temporaries, dense_bytes
from dnnmem_tune.operators.sorting import embedding_scratch, radix_sort_scratch

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten

_INDEX_BYTES = 8
_LONGEST_SMALL_SORT = 4096


@memory_plan(aten.embedding.default)
def embedding(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """Indices with gaps are copied."""
    if not args[1].is_contiguous():
        yield Temporaries().take(dense_bytes(args[1]))
    yield Output(output)


@memory_plan(aten.embedding_dense_backward.default)
def embedding_backward(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """Sorted indices and their places, then the gradient, then partial sums of rows with one index."""
    gradient, indices = args[0], args[1]
    by_frequency = bool(args[4]) if len(args) > 4 else False
    temporaries = Temporaries()
    for tensor in (indices, gradient):
        if not tensor.is_contiguous():
            yield temporaries.take(dense_bytes(tensor))
    yield from _sum_by_index(indices, gradient, output, temporaries, sorts=by_frequency)


@memory_plan(aten._embedding_bag_backward.default)
def embedding_bag_backward(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """As an embedding's, however few indices there are; nothing of it where the largest is kept."""
    gradient, indices, mode = args[0], args[1], args[8]
    if mode == _MAX_MODE:
        yield Output(output)
        return
    temporaries = Temporaries()
    if not gradient.is_contiguous():
        yield temporaries.take(dense_bytes(gradient))
    yield from _sum_by_index(indices, gradient, output, temporaries, sorts=True)


_MAX_MODE = 2


@memory_plan(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(_recorder: Recorder, _args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """Sizes of the bags, the bag of each index, then the result."""
    result, bag_of_index, bag_sizes, largest = output
    for tensor in (bag_sizes, bag_of_index, result, largest):
        yield Output(tensor)


def _sum_by_index(
    indices: torch.Tensor, gradient: torch.Tensor, output: torch.Tensor, temporaries: Temporaries, *, sorts: bool
) -> Iterator[Action]:
    def take(what: str) -> Take:
        return temporaries.request(
            embedding_scratch(
                what, indices=indices.numel(), rows=output.size(0), columns=output.size(1),
                index_bytes=indices.element_size(), accumulated_bytes=max(4, gradient.element_size()), sorts=sorts,
            )
        )  # fmt: skip

    def take_and_give(*parts: str) -> Iterator[Action]:
        numbers = []
        for part in parts:
            yield take(part)
            numbers.append(temporaries.last)
        for number in reversed(numbers):
            yield Give(number)

    yield take("indices")
    yield take("indices")
    yield from take_and_give("indices", "sort")
    yield Output(output)
    yield take("indices")
    yield from take_and_give("indices")
    yield take("segments")
    yield take("segments")
    yield take("partials")
    yield take("sums")


@memory_plan(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """Indices that are broadcast against each other are copied to one shape."""
    indices = [tensor for tensor in args[1] if tensor is not None]
    shapes = {tuple(tensor.shape) for tensor in indices}
    if len(shapes) > 1:
        shape = torch.broadcast_shapes(*shapes)
        temporaries = Temporaries()
        for _ in indices:
            yield temporaries.take(math.prod(shape) * _INDEX_BYTES)
    yield Output(output)


@memory_plan(
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index_put.default,
)
def index_put(_recorder: Recorder, args: Any, kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """With ``accumulate``, linear indices are computed dimension by dimension and sorted.

    Source: ``index_put_with_sort_kernel`` and ``computeLinearIndex``.
    """
    target, indices, values = args[:3]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    yield Output(output)
    if not accumulate:
        return
    temporaries = Temporaries()
    present = [tensor for tensor in indices if tensor is not None]
    count = math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in present)))
    nbytes = count * _INDEX_BYTES
    for number_of_index in range(len(present)):
        yield temporaries.take(nbytes)
        yield temporaries.take(nbytes)
        yield Give(temporaries.last - 1)
        if number_of_index:
            yield Give(temporaries.last)
    if not values.is_contiguous():
        yield temporaries.take(dense_bytes(values))
    yield temporaries.take(nbytes)
    yield temporaries.take(nbytes)
    yield temporaries.take(nbytes)
    indexed = math.prod(target.shape[dim] for dim, tensor in enumerate(indices) if tensor is not None)
    yield temporaries.request(
        radix_sort_scratch(
            items=count, key_bytes=_INDEX_BYTES, value_bytes=_INDEX_BYTES, bits=max(1, indexed.bit_length())
        )
    )
    yield Give(temporaries.last)
    yield Give(temporaries.last - 1)


@memory_plan(aten.sort.default, aten.sort.stable)
def sort(_recorder: Recorder, args: Any, kwargs: Any, output: Any) -> Iterator[Action]:
    """Long rows go through a sort of pairs, with a list of positions to sort along.

    Source: ``sort_cuda_kernel`` and ``sort_cuda_stable``.
    """
    source = args[0]
    values, indices = output
    yield Output(values)
    yield Output(indices)
    dim = next((value for value in args[1:] if isinstance(value, int) and not isinstance(value, bool)), None)
    dim = kwargs.get("dim", -1) if dim is None else dim
    if source.dim() == 0 or source.size(dim) <= _LONGEST_SMALL_SORT:
        return
    temporaries = Temporaries()
    if not source.is_contiguous():
        yield temporaries.take(dense_bytes(source))
    yield temporaries.take(source.numel() * _INDEX_BYTES)
    bits = 8 * source.element_size()
    yield temporaries.request(
        radix_sort_scratch(
            items=source.numel(), key_bytes=source.element_size(), value_bytes=_INDEX_BYTES, bits=bits
        )
    )


@memory_plan(aten.topk.default)
def topk(_recorder: Recorder, args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """An input with gaps is copied."""
    yield Output(output[0])
    yield Output(output[1])
    if not args[0].is_contiguous():
        yield Temporaries().take(dense_bytes(args[0]))


@memory_plan(aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)
def cumulate(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """An input with gaps or of another type than the result is copied."""
    yield Output(output)
    if args[0].dtype is not output.dtype or not args[0].is_contiguous():
        yield Temporaries().take(dense_bytes(output))


@memory_plan(aten.masked_scatter.default, aten.masked_scatter_.default)
def masked_scatter(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """How many elements the mask selects before each one."""
    yield Output(output)
    yield Temporaries().take(args[0].numel() * _INDEX_BYTES)


@memory_plan(aten.roll.default)
def roll(_recorder: Recorder, args: Any, kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """One dimension after the other, each into a new tensor, from a copy if the input has gaps.

    Source: ``roll_common`` in ``aten/src/ATen/native/TensorTransformations.h`` and ``roll_cuda``.
    """
    dims = args[2] if len(args) > 2 else kwargs.get("dims", ())
    temporaries = Temporaries()
    nbytes = dense_bytes(output)
    copied = not args[0].is_contiguous()
    if copied:
        yield temporaries.take(nbytes)
    for position in range(len(dims) - 1):
        yield temporaries.take(nbytes)
        if copied and position == 0:
            yield Give(0)
    yield Output(output)


@memory_plan(aten.im2col.default)
def unfold(_recorder: Recorder, args: Any, _kwargs: Any, output: torch.Tensor) -> Iterator[Action]:
    """The result starts in the input's size and grows; an input with gaps is copied."""
    temporaries = Temporaries()
    for _ in range(1 if args[0].is_contiguous() else 2):
        yield temporaries.take(dense_bytes(args[0]))
    yield Output(output)
