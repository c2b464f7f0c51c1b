"""The scratch memory of PyTorch's own normalization kernels on CUDA.

Source: ``layer_norm_kernel.cu`` and ``Normalization.cuh`` in ``aten/src/ATen/native/cuda``,
PyTorch 2.14.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.operators.reduction import Reduction, reduction_bytes
from dnnmem_tune.operators.scratch import KernelTarget, scratch_rule

_WARP = 32
_LONG = 64 * 1024
_ROWS_PER_BLOCK = 32
_MOST_BLOCKS = 32 * 1024

_TILE, _BLOCK, _ELEMENTS_PER_THREAD, _MOST_ROWS_OF_BLOCKS = 32, 512, 16, 128
_FEWEST_ROWS_OF_BLOCKS = 8


def layer_norm_scratch(what: str, *, rows: int, columns: int, element_bytes: int) -> Scratch:
    """Return the request of a layer norm's backward for one of its two weight gradients.

    Args:
        what: ``partials``, ``result`` for their sum, ``buffer`` and ``semaphores`` for summing them.
        rows: How many vectors are normalized.
        columns: Elements of one vector.
        element_bytes: Of the weight.

    """
    numbers = (rows, columns, element_bytes)
    return Scratch("layer norm gradient", tuple(Polynomial(number) for number in numbers), what)


@scratch_rule("layer norm gradient")
def layer_norm_gradient_bytes(arguments: Sequence[int], tag: str, target: KernelTarget) -> int:
    """Return what one weight gradient takes: partial sums by block of rows, where rows are many and short.

    Source: ``LaunchGammaBetaBackwardCUDAKernel``.
    """
    rows, columns, element_bytes = arguments
    if rows <= _LONG or columns // _WARP >= target.num_sms // 2:
        return 0
    blocks = min(-(-rows // _ROWS_PER_BLOCK), _MOST_BLOCKS // -(-columns // _WARP))
    if tag == "partials":
        return blocks * columns * element_bytes
    if tag == "result":
        return columns * element_bytes
    summed = Reduction(
        shape=(blocks, columns), strides=(columns, 1), result_strides=(0, 1),
        element_bytes=element_bytes, result_bytes=element_bytes, partial_bytes=max(4, element_bytes),
    )  # fmt: skip
    request = summed.request(tag)
    return reduction_bytes([argument.constant for argument in request.arguments], tag, target)


def batch_norm_scratch(what: str, *, rows: int, channels: int, values: int) -> Scratch:
    """Return the request of a batch norm whose channels lie last.

    Args:
        what: ``staging`` or ``semaphores``.
        rows: Elements of one channel.
        channels: Number of channels.
        values: Numbers that a block leaves for each channel: 4 in forward, 2 in backward.

    """
    numbers = (rows, channels, values)
    return Scratch("batch norm", tuple(Polynomial(number) for number in numbers), what)


@scratch_rule("batch norm")
def batch_norm_bytes(arguments: Sequence[int], tag: str, _target: KernelTarget) -> int:
    """Return what the blocks that share a channel exchange.

    Source: ``flexible_launch_configs`` and ``batch_norm_stats_channels_last_cuda_template``.
    """
    rows, channels, values = arguments
    block_x = min(_power_of_two(channels), _TILE)
    block_y = min(_power_of_two(-(-rows // _ELEMENTS_PER_THREAD)), _BLOCK // block_x)
    if block_x * block_y != _BLOCK:
        block_x = min(_power_of_two(channels), _BLOCK // block_y)
    rows_of_blocks = min(-(-rows // (block_y * _ELEMENTS_PER_THREAD)), _MOST_ROWS_OF_BLOCKS)
    if rows_of_blocks < _FEWEST_ROWS_OF_BLOCKS:
        return 0
    if tag == "semaphores":
        return 4 * -(-channels // block_x)
    return 4 * values * channels * rows_of_blocks


def _power_of_two(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)
