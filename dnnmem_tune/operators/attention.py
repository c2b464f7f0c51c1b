"""Buffers that CUDA's attention kernels take for themselves.

Sizes that follow from shapes alone are written by the front-end; here are those for which
the kernel, and so the size, depends on the device or on how many blocks the batch makes.

Source: ``flash_attn/flash_api.cpp``, ``mem_eff_attention/kernel_backward.h``, its
``kernels/generate_kernels.py`` and ``attention_backward.cu`` in
``aten/src/ATen/native/transformers/cuda``, torch 2.14.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dnnmem_tune.operators.scratch import KernelTarget, scratch_rule

_FLOAT_BYTES = 4

_FLASH_ROWS = 64
"""Rows of queries in one block of the flash kernel that splits keys."""

_MAX_FLASH_SPLITS = 128

_GRAD_Q_HEADER_FLOATS = 4
"""``GradQTempStorage``: a lock, a counter and padding before each tile."""

_UNLIMITED_WIDTH = 65536


def flash_width(width: int) -> int:
    """Return the head width that flash attention's float buffers have."""
    return round_up(width, 32 if width <= 128 else 64)


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not below ``number``."""
    return -(-number // multiple) * multiple


@scratch_rule("flash_attention_split")
def flash_attention_split(arguments: Sequence[int], tag: str, target: KernelTarget) -> int:
    """Bytes of the partial results of flash attention where it splits the keys.

    Args:
        arguments: Batch size, heads, queries, keys, head width.
        tag: ``output`` or ``logsumexp``: of which result.
        target: The device; its number of multiprocessors decides how often the keys are split.

    """
    batch, heads, queries, keys, width = arguments
    block_keys = 256 if width <= 64 else 128 if width <= 128 else 64
    num_blocks = batch * heads * -(-queries // _FLASH_ROWS)
    splits = _num_flash_splits(num_blocks, 2 * target.num_sms, -(-keys // block_keys))
    if splits <= 1:
        return 0
    rows = splits * batch * heads * queries
    return rows * _FLOAT_BYTES * (flash_width(width) if tag == "output" else 1)


def _num_flash_splits(num_blocks: int, num_slots: int, num_key_blocks: int) -> int:
    """``num_splits_heuristic``: the fewest splits within 85 % of the best use of the slots."""
    if num_blocks >= 0.8 * num_slots:
        return 1
    efficiencies: dict[int, float] = {}
    for splits in range(1, min(_MAX_FLASH_SPLITS, num_slots, num_key_blocks) + 1):
        if splits > 1 and -(-num_key_blocks // splits) == -(-num_key_blocks // (splits - 1)):
            continue
        waves = num_blocks * splits / num_slots
        efficiencies[splits] = waves / -(-num_blocks * splits // num_slots)
    best = max(efficiencies.values(), default=0.0)
    return next((splits for splits, value in efficiencies.items() if value >= 0.85 * best), 1)


@scratch_rule("flash_attention_backward")
def flash_attention_backward(arguments: Sequence[int], tag: str, target: KernelTarget) -> int:
    """Bytes of the float32 accumulator of the queries' gradient.

    Args:
        arguments: Batch size, heads, queries, head width.
        tag: ``deterministic`` where the user asks for it: one accumulator for each split.
        target: The device.

    """
    batch, heads, queries, width = arguments
    splits = -(-target.num_sms // (batch * heads)) if tag == "deterministic" else 1
    return splits * batch * round_up(queries, 128) * heads * flash_width(width) * _FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class _BackwardKernel:
    """One instance of ``AttentionBackwardKernel``."""

    max_width: int
    block_queries: int
    block_keys: int
    keeps_output: bool
    """The gradients of keys and values stay in registers (``kOutputInRF``)."""


@scratch_rule("efficient_attention_backward")
def efficient_attention_backward(arguments: Sequence[int], tag: str, target: KernelTarget) -> int:
    """Bytes of the workspace of memory-efficient attention's backward.

    Args:
        arguments: Batch size, heads, queries, keys, head width of queries and keys, of values.
        tag: ``half`` or ``float``, followed by ``dropout`` where there is some.
        target: The device; its shared memory decides which kernel runs.

    """
    batch, heads, queries, keys, width, value_width = arguments
    half, dropout = tag.startswith("half"), tag.endswith("dropout")
    kernel = next(
        kernel
        for kernel in _backward_kernels(half, dropout, target.compute_capability)
        if kernel.max_width >= max(width, value_width)
    )
    tiles = -(-queries // kernel.block_queries) * -(-width // kernel.block_keys)
    elements = tiles * (_GRAD_Q_HEADER_FLOATS + kernel.block_queries * kernel.block_keys)
    if half and not kernel.keeps_output:
        splits = _num_key_splits(batch * heads, keys, kernel.block_keys)
        widths = sum(round_up(width, kernel.block_queries) for width in (width, value_width))
        elements += splits * kernel.block_keys * widths
    return batch * heads * round_up(elements, 4) * _FLOAT_BYTES


def _num_key_splits(num_heads: int, keys: int, block_keys: int) -> int:
    splits = -(-keys // block_keys)
    if num_heads >= 256 and keys <= 2 * block_keys:
        splits = 1
    return max(1, min(splits, 200 // num_heads))


def _backward_kernels(half: bool, dropout: bool, capability: tuple[int, int]) -> Iterator[_BackwardKernel]:
    """``BwdKernel.get_all``, in the order in which they are tried, without those that do not fit the device.

    Kernels that differ in alignment alone take the same workspace and are left out.
    """
    little_shared_memory = capability in ((8, 6), (8, 9)) or capability[0] == 12  # 99 KiB a block
    for max_width, block_queries in itertools.product((32, 64, 96, 128, _UNLIMITED_WIDTH), (128, 64)):
        keeps_output = half and max_width <= block_queries
        preloads = keeps_output and capability >= (8, 0)
        if max_width == 96:
            # For Stable Diffusion's heads of 80, on consumer cards only.
            if preloads and block_queries == 128 and capability in ((8, 6), (8, 9)) and not dropout:
                yield _BackwardKernel(max_width, block_queries, 64, keeps_output)
            continue
        if block_queries == 128:
            exists = max_width > 64 and (capability >= (8, 0) or (half and capability >= (7, 0)))
            too_large = little_shared_memory and (preloads or not half)
            if not exists or too_large:
                continue
        yield _BackwardKernel(max_width, block_queries, 128 if preloads and max_width > 64 else 64, keeps_output)


def efficient_backward_computes_delta(half: bool, width: int, capability: tuple[int, int]) -> bool:
    """Return whether the kernel sums gradient x output itself, or PyTorch does with temporaries.

    Args:
        half: Whether the type has 16 bits.
        width: The larger head width of queries and values.
        capability: Compute capability of the device.

    Source:
        ``kKernelComputesDelta`` in ``mem_eff_attention/kernel_backward.h``.

    """
    return half and (capability >= (7, 5) or width <= 128)
