"""The scratch memory of CUB's radix sort and of the kernels that sort indices.

Source: ``DispatchRadixSort`` and its policy hub in CUB (CUDA 13.0), recorded from the CUDA
build of PyTorch 2.14.1; ``EmbeddingBackwardKernel.cu`` in ``aten/src/ATen/native/cuda``.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.operators.scratch import KernelTarget, scratch_rule

_ALIGNMENT = 256
_BITS_PER_PASS = 8
_BYTES_PER_PASS = 2048
_BYTES_PER_TILE = 1024
_SINGLE_TILE_THREADS, _SINGLE_TILE_ITEMS = 256, 19

_TILES = {
    (9, 0): {(4, 4): 6528, (4, 8): 4608, (8, 8): 4608},
    (8, 0): {(4, 4): 6528, (4, 8): 3072, (8, 8): 3840},
    (7, 0): {(4, 4): 11776, (4, 8): 2816, (8, 8): 2816},
}
"""Oldest capability -> bytes of a key and of a value -> items that one block sorts."""

_EMBEDDING_SORTS_ABOVE = 3072
_ROWS_PER_PARTIAL_SUM = 10


def radix_sort_scratch(*, items: int, key_bytes: int, value_bytes: int, bits: int) -> Scratch:
    """Return the request of a sort of pairs.

    Args:
        items: How many pairs.
        key_bytes: Bytes of a key.
        value_bytes: Bytes of a value.
        bits: How many bits of the key are looked at.

    """
    numbers = (items, key_bytes, value_bytes, bits)
    return Scratch("radix sort", tuple(Polynomial(number) for number in numbers))


@scratch_rule("radix sort")
def radix_sort_bytes(arguments: Sequence[int], _tag: str, target: KernelTarget) -> int:
    """Return the bytes of a second set of keys and values and of what the blocks tell each other."""
    items, key_bytes, value_bytes, bits = arguments
    widest = max(key_bytes, value_bytes)
    if items <= _SINGLE_TILE_THREADS * (_SINGLE_TILE_ITEMS * 4 // widest):
        return 1 if items else 0
    oldest = max((capability for capability in _TILES if capability <= target.compute_capability), default=(7, 0))
    tile = _TILES[oldest][4 if key_bytes <= 4 else 8, 4 if value_bytes <= 4 else 8]
    passes = -(-bits // _BITS_PER_PASS)
    shared = _BYTES_PER_PASS * passes + 2 * _ALIGNMENT - 1 + _BYTES_PER_TILE * -(-items // tile)
    second_set = _align(items * key_bytes) + _align(items * value_bytes) if passes > 1 else 0
    return second_set + shared


def embedding_scratch(
    what: str,
    *,
    indices: int,
    rows: int,
    columns: int,
    index_bytes: int,
    accumulated_bytes: int,
    sorts: bool = False,
) -> Scratch:
    """Return a request of an embedding's backward.

    Args:
        what: ``indices`` for a list of them, ``sort``, ``segments`` for one number per distinct index,
            ``partials`` for one per partial sum, ``sums`` for the partial sums, ``copy`` for a copy of
            the gradient.
        indices: How many rows are looked up.
        rows: Rows of the weight.
        columns: Columns of the weight.
        index_bytes: Bytes of an index.
        accumulated_bytes: Bytes of a number of a partial sum.
        sorts: Whether indices are sorted however few there are.

    """
    numbers = (indices, rows, columns, index_bytes, accumulated_bytes, int(sorts))
    return Scratch("embedding gradient", tuple(Polynomial(number) for number in numbers), what)


@scratch_rule("embedding gradient")
def embedding_gradient_bytes(arguments: Sequence[int], tag: str, target: KernelTarget) -> int:
    """Return what is taken where indices are sorted; few are summed without.

    Source: ``embedding_dense_backward_cuda`` and ``embedding_backward_cuda_kernel``.
    """
    indices, rows, columns, index_bytes, accumulated_bytes, sorts = arguments
    if indices <= _EMBEDDING_SORTS_ABOVE and not sorts:
        return 0
    segments = min(indices, rows)
    partials = segments + indices // _ROWS_PER_PARTIAL_SUM
    match tag:
        case "indices":
            return indices * index_bytes
        case "sort":
            bits = max(1, (rows - 1).bit_length())
            return radix_sort_bytes((indices, index_bytes, index_bytes, bits), "", target)
        case "segments":
            return segments * index_bytes
        case "partials":
            return partials * index_bytes
        case _:
            return partials * columns * accumulated_bytes


def _align(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
