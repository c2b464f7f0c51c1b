"""The block that ONNX Runtime plans for all tensors of a run together, once it has seen one run.

Arguments are the sizes of the tensors in bytes, the tag the order in which they come and go: ``i``
takes tensor ``i``, ``~i`` (that is ``-i - 1``) gives it back.

Source:
    ``core/framework/mem_pattern_planner.h`` of ONNX Runtime: a tensor goes into the gap that it
    fills best, or behind the last one; sizes are multiples of ``kAllocAlignment``, 256 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.operators.scratch import KernelTarget, scratch_rule

RULE = "onnxruntime memory pattern"
"""Name under which traces refer to the rule."""

ALIGNMENT_BYTES = 256
"""Source: ``kAllocAlignment`` in ``core/framework/allocator.h``."""


def pattern_scratch(sizes: Sequence[int], events: Sequence[int]) -> Scratch:
    """Return what a trace records for the planned block.

    Args:
        sizes: Bytes of each tensor.
        events: ``i`` takes tensor ``i``, ``~i`` gives it back.

    """
    return Scratch(RULE, tuple(Polynomial(nbytes) for nbytes in sizes), ",".join(map(str, events)))


@scratch_rule(RULE)
def pattern_bytes(arguments: Sequence[int], tag: str, target: KernelTarget) -> int:
    """Return the bytes of the planned block.

    Args:
        arguments: Bytes of each tensor.
        tag: The events, with commas between them.
        target: Plays no part.

    Example:
        >>> target = KernelTarget(compute_capability=(8, 0), num_sms=108, threads_per_sm=2048)
        >>> pattern_bytes([256, 512, 256], "0,1,-1,2", target)  # the third goes where the first was
        768

    """
    del target
    blocks: list[tuple[int, int, int]] = []  # offset, end, tensor; in order of the offset
    nbytes = 0
    for code in map(int, tag.split(",") if tag else ()):
        if code < 0:
            blocks = [block for block in blocks if block[2] != ~code]
            continue
        size = -(-arguments[code] // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if not size:
            continue
        position, offset = _best_fit(blocks, size)
        blocks.insert(position, (offset, offset + size, code))
        nbytes = max(nbytes, offset + size)
    return nbytes


def _best_fit(blocks: Sequence[tuple[int, int, int]], size: int) -> tuple[int, int]:
    """Return where a tensor goes: its place in the list, and its offset."""
    position, offset = len(blocks), blocks[-1][1] if blocks else 0
    least_waste: int | None = None
    current = 0
    for index, (start, end, _) in enumerate(blocks):
        waste = start - current - size
        if waste >= 0 and (least_waste is None or waste < least_waste):
            position, offset, least_waste = index, current, waste
        current = end
    return position, offset
