"""The scratch memory of PyTorch's CUDA reductions.

``sum``, ``mean``, norms, ``amax``, ``var`` and many operators that use them are one kernel
template. Where a block of threads would have too much to read and there are too few
outputs to fill the card, several blocks share an output: their partial results go to a
buffer in global memory, and a semaphore per output tells which block is last.

How many blocks share an output follows from the shape as the kernel sees it: dimensions are
sorted by stride, reduced ones first, and those that lie next to each other in memory are
one. Both steps are repeated here, since either changes the buffer by orders of magnitude.

Source:
    ``setReduceConfig`` and ``gpu_reduce_kernel`` in ``aten/src/ATen/native/cuda/Reduce.cuh``;
    ``reorder_dimensions``, ``coalesce_dimensions``, ``can_use_32bit_indexing`` and ``split``
    in ``aten/src/ATen/TensorIterator.cpp``; PyTorch 2.14.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.operators.scratch import KernelTarget, scratch_rule

_WARP = 32
_SEMAPHORE_BYTES = 4
_MIN_VALUES_PER_THREAD, _MAX_VALUES_PER_THREAD = 16, 256
_MAX_THREADS, _MAX_THREADS_COMPLEX_DOUBLE = 512, 256
_LARGEST_32_BIT = 2**31 - 1
_LARGEST_VECTOR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """One reduction of a strided tensor, in elements unless a field says bytes."""

    shape: tuple[int, ...]
    """Extents of the input."""

    strides: tuple[int, ...]
    """Strides of the input."""

    result_strides: tuple[int, ...]
    """Strides of the result along the input's dimensions; 0 where it is reduced."""

    offset: int = 0
    """Where the input starts, counted from an aligned address."""

    element_bytes: int
    """Bytes of one input element."""

    result_bytes: int
    """Bytes of one element of the result."""

    partial_bytes: int
    """Bytes of one partial result: 4 for a sum of half numbers, 16 for a value with an index."""

    accumulates_in_result: bool = True
    """Whether a partial result can be kept in the result itself: not for half types, moments and indices."""

    def request(self, what: str) -> Scratch:
        """Return the request for ``buffer``, ``semaphores`` or ``accumulator``."""
        numbers = (
            self.offset, self.element_bytes, self.result_bytes, self.partial_bytes,
            int(self.accumulates_in_result), *self.shape, *self.strides, *self.result_strides,
        )  # fmt: skip
        return Scratch("reduction", tuple(Polynomial(number) for number in numbers), what)


@dataclass(frozen=True, slots=True)
class LaunchConfiguration:
    """The part of ``ReduceConfig`` that decides the scratch."""

    blocks_per_output: int
    num_outputs: int
    outputs_per_block: int
    partials_per_output: int

    def buffer_bytes(self, partial_bytes: int) -> int:
        """Return ``ReduceConfig::global_memory_size``."""
        if self.blocks_per_output == 1:
            return 0
        return partial_bytes * self.num_outputs * self.blocks_per_output * self.partials_per_output

    def semaphore_bytes(self) -> int:
        """Return ``ReduceConfig::semaphore_size``."""
        return _SEMAPHORE_BYTES * self.outputs_per_block if self.blocks_per_output > 1 else 0


@scratch_rule("reduction")
def reduction_bytes(arguments: Sequence[int], tag: str, target: KernelTarget) -> int:
    """Return the bytes that a reduction requests for ``tag``.

    A tensor beyond 32-bit offsets is reduced in parts, one after the other, of which the
    largest request counts.

    Args:
        arguments: As ``Reduction.request`` lays them out.
        tag: ``buffer``, ``semaphores`` or ``accumulator``.
        target: The card.

    """
    reduction = _from_arguments(arguments)
    if not math.prod(reduction.shape):
        return 0
    seen = _as_the_kernel_sees(reduction)
    if tag == "accumulator":
        return _accumulator_bytes(seen)
    largest = 0
    for part in _parts_of_32_bits(seen):
        configuration = launch_configuration(part, target)
        if tag == "buffer":
            largest = max(largest, configuration.buffer_bytes(part.partial_bytes))
        else:
            largest = max(largest, configuration.semaphore_bytes())
    return largest


def launch_configuration(reduction: Reduction, target: KernelTarget) -> LaunchConfiguration:
    """Return how the kernel is launched (``setReduceConfig``).

    Args:
        reduction: With dimensions in the kernel's order: reduced ones first, fastest first.
        target: The card.

    """
    num_reduced = sum(stride == 0 for stride in reduction.result_strides)
    num_outputs = math.prod(reduction.shape[num_reduced:])
    num_inputs = math.prod(reduction.shape[:num_reduced])
    along_fastest = num_reduced == len(reduction.shape) or (
        num_reduced > 0 and reduction.strides[0] < reduction.strides[num_reduced]
    )
    width, height = (num_inputs, num_outputs) if along_fastest else (num_outputs, num_inputs)
    fastest_stride = 1
    if reduction.shape:
        fastest_stride = reduction.strides[0 if along_fastest else num_reduced]
    output_vector = 1
    if fastest_stride == 1:
        if along_fastest and width >= 128 and num_reduced == 1:
            # Some kernels load 2 or 8: the block has its full width either way where blocks share an output.
            width //= _LARGEST_VECTOR
        elif not along_fastest:
            output_vector = _output_vector(reduction, num_reduced)
            width //= output_vector
    block_width, block_height = _block(width, height, reduction.element_bytes, output_vector)

    step_input, step_output = (block_width, 1) if along_fastest else (1, block_width)
    split_across_warps = _div_up(num_inputs, step_input) >= min(block_height * 16, _MAX_VALUES_PER_THREAD)
    if split_across_warps:
        step_input *= block_height
    else:
        step_output *= block_height
    grid = _div_up(num_outputs // output_vector, step_output)
    values = _div_up(num_inputs, step_input)
    blocks_that_fill_the_card = target.num_sms * (target.threads_per_sm // (block_width * block_height))
    blocks = 1
    if split_across_warps and values >= _MAX_VALUES_PER_THREAD and grid <= blocks_that_fill_the_card:
        # std::clamp: the lower bound is looked at last.
        blocks = min(_div_up(blocks_that_fill_the_card, grid), _div_up(values, _MIN_VALUES_PER_THREAD))
        blocks = max(blocks, _div_up(values, _MAX_VALUES_PER_THREAD))
    partials = 1 if along_fastest else block_width * output_vector
    return LaunchConfiguration(blocks, num_outputs, grid, partials)


def _block(width: int, height: int, element_bytes: int, output_vector: int) -> tuple[int, int]:
    """``set_block_dimension``."""
    most = (_MAX_THREADS if element_bytes < 16 else _MAX_THREADS_COMPLEX_DOUBLE) // output_vector
    width = _power_of_two(width) if width < most else most
    height = _power_of_two(height) if height < most else most
    block_width = min(width, _WARP)
    block_height = min(height, most // block_width)
    return min(width, most // block_height), block_height


def _output_vector(reduction: Reduction, num_reduced: int) -> int:
    """``get_output_vec_size``: every stride but the fastest, the extent and the address must be divisible."""
    vector = _LARGEST_VECTOR
    others = [stride for dim, stride in enumerate(reduction.strides) if dim != num_reduced]
    for number in (reduction.offset, reduction.shape[num_reduced], *others):
        while number % vector:
            vector //= 2
    return vector


def _as_the_kernel_sees(reduction: Reduction) -> Reduction:
    """Sort the dimensions by stride, reduced ones first, and join those that are one in memory."""
    order = _sorted_dimensions(reduction)
    shape = [reduction.shape[dim] for dim in order]
    strides = [reduction.strides[dim] for dim in order]
    result_strides = [reduction.result_strides[dim] for dim in order]
    last = 0
    for dim in range(1, len(shape)):
        joined = 1 in (shape[last], shape[dim]) or (
            shape[last] * strides[last] == strides[dim]
            and shape[last] * result_strides[last] == result_strides[dim]
        )
        if joined:
            if shape[last] == 1:
                strides[last], result_strides[last] = strides[dim], result_strides[dim]
            shape[last] *= shape[dim]
        else:
            last += 1
            shape[last], strides[last], result_strides[last] = shape[dim], strides[dim], result_strides[dim]
    stop = last + 1 if shape else 0
    return replace(
        reduction,
        shape=tuple(shape[:stop]),
        strides=tuple(strides[:stop]),
        result_strides=tuple(result_strides[:stop]),
    )


def _sorted_dimensions(reduction: Reduction) -> list[int]:
    """An insertion sort, as in ``reorder_dimensions``: its comparison is ambiguous for broadcast dimensions."""
    order = list(reversed(range(len(reduction.shape))))
    for start in range(1, len(order)):
        moving = start
        for candidate in reversed(range(start)):
            comparison = _compare(reduction, order[candidate], order[moving])
            if comparison > 0:
                order[candidate], order[moving] = order[moving], order[candidate]
                moving = candidate
            elif comparison < 0:
                break
    return order


def _compare(reduction: Reduction, first: int, second: int) -> int:
    """Return 1 if ``first`` belongs after ``second``, -1 if before, 0 if nothing tells."""
    result = (
        reduction.result_strides[first] * reduction.result_bytes,
        (reduction.result_strides[second] * reduction.result_bytes),
    )
    if (result[0] == 0) != (result[1] == 0):
        return 1 if result[1] == 0 else -1
    inputs = reduction.strides[first], reduction.strides[second]
    for left, right in (result, inputs):
        if left == 0 or right == 0:
            continue
        if left != right:
            return -1 if left < right else 1
        if reduction.shape[first] > reduction.shape[second]:
            return 1
    return 0


def _parts_of_32_bits(reduction: Reduction) -> Iterator[Reduction]:
    """Halve the dimension of the largest extent until every offset fits in 32 bits."""
    if _fits_32_bits(reduction):
        yield reduction
        return
    pairs = [
        (max((extent - 1) * abs(stride) * nbytes for stride, nbytes in _operands(reduction, dim)), -dim)
        for dim, extent in enumerate(reduction.shape)
    ]
    # The search starts at the last dimension and only a larger extent replaces it.
    dim = max(range(len(pairs)), key=lambda index: (pairs[index][0], index))
    first = reduction.shape[dim] // 2
    for extent, start in ((first, 0), (reduction.shape[dim] - first, first)):
        shape = (*reduction.shape[:dim], extent, *reduction.shape[dim + 1 :])
        yield from _parts_of_32_bits(
            replace(reduction, shape=shape, offset=reduction.offset + start * reduction.strides[dim])
        )


def _operands(reduction: Reduction, dim: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (reduction.result_strides[dim], reduction.result_bytes), (
        reduction.strides[dim],
        reduction.element_bytes,
    )


def _fits_32_bits(reduction: Reduction) -> bool:
    def reach(strides: tuple[int, ...], nbytes: int) -> int:
        pairs = zip(reduction.shape, strides, strict=True)
        return 1 + sum((extent - 1) * stride * nbytes for extent, stride in pairs)

    return (
        math.prod(reduction.shape) <= _LARGEST_32_BIT
        and reach(reduction.strides, reduction.element_bytes) <= _LARGEST_32_BIT
        and reach(reduction.result_strides, reduction.result_bytes) <= _LARGEST_32_BIT
    )


def _accumulator_bytes(reduction: Reduction) -> int:
    """Parts of one output meet in a buffer of their own where the result cannot hold a partial result."""
    if reduction.accumulates_in_result or reduction.result_bytes >= reduction.partial_bytes:
        return 0
    if _fits_32_bits(reduction):
        return 0
    extents = zip(reduction.shape, reduction.result_strides, strict=True)
    elements = max([1, *(extent * stride for extent, stride in extents)])
    return elements * reduction.partial_bytes


def _from_arguments(arguments: Sequence[int]) -> Reduction:
    offset, element_bytes, result_bytes, partial_bytes, in_result, *rest = arguments
    rank = len(rest) // 3
    return Reduction(
        shape=tuple(rest[:rank]), strides=tuple(rest[rank : 2 * rank]), result_strides=tuple(rest[2 * rank :]),
        offset=offset, element_bytes=element_bytes, result_bytes=result_bytes, partial_bytes=partial_bytes,
        accumulates_in_result=bool(in_result),
    )  # fmt: skip


def _power_of_two(number: int) -> int:
    """Return the largest power of two not above ``number``, at least 1."""
    return 1 << (max(1, number).bit_length() - 1)


def _div_up(number: int, divisor: int) -> int:
    return -(-number // divisor)
