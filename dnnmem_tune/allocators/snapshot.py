"""A simulated run in PyTorch's memory-snapshot format, for https://pytorch.org/memory_viz.

The layout is that of ``torch.cuda.memory._snapshot()`` in PyTorch 2.13, which that page and
``python -m torch.cuda._memory_viz`` read once it is pickled. Where PyTorch puts a stack of
source lines, a simulated run has two frames: the operator and its module, and what the
storage is for and when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.layout import Segment
from dnnmem_tune.allocators.policy import CachingPolicy
from dnnmem_tune.ir.trace import MemoryTrace

_POOL_ID = (0, 0)
_STREAM = 0


def memory_snapshot(
    trace: MemoryTrace,
    sizes: Sequence[int],
    policy: CachingPolicy | None = None,
    capacity_bytes: int | None = None,
    total_bytes: int | None = None,
) -> dict[str, Any]:
    """Return the history of a run and the state after it, ready to be pickled.

    Args:
        trace: The run.
        sizes: Bytes of each storage at one batch size.
        policy: As for ``CachingAllocator``.
        capacity_bytes: As for ``CachingAllocator``.
        total_bytes: As for ``CachingAllocator``.

    Returns:
        Segments with their blocks, and one entry for each thing the allocator did. Times are
        event numbers, in microseconds. A run that is out of memory ends with an ``oom`` entry.

    """
    allocator = CachingAllocator(policy, capacity_bytes, total_bytes)
    entries = list(_entries(trace, sizes, allocator))
    return {
        "segments": [
            _describe_segment(segment, trace, sizes, allocator.policy) for segment in allocator.segments()
        ],
        "device_traces": [entries],
        "allocator_settings": {"expandable_segments": allocator.policy.expandable_segments},
        "external_annotations": [],
    }


def _entries(trace: MemoryTrace, sizes: Sequence[int], allocator: CachingAllocator) -> Iterator[dict[str, Any]]:
    mapped: dict[int, int] = {}
    for position, code in enumerate(trace.events):
        storage = code if code >= 0 else ~code
        frames = _frames(trace, storage)
        place = allocator.place_of(storage) if code < 0 else None
        reserved_bytes, num_retries = allocator.stats.reserved_bytes, allocator.num_retries
        is_served = allocator.run(trace.events, sizes, position, position + 1) > position
        if (reserved_bytes, num_retries) != (allocator.stats.reserved_bytes, allocator.num_retries):
            before, mapped = mapped, {segment.address: segment.nbytes for segment in allocator.segments()}
            yield from _changes(
                before, mapped, position, frames, is_expandable=allocator.policy.expandable_segments
            )
        if not is_served:
            yield _entry("oom", 0, sizes[storage], position, frames) | {"device_free": allocator.free_device_bytes}
            if not trace.storages[storage].optional:
                return
        elif place is not None:
            for action in ("free_requested", "free_completed"):
                yield _entry(action, place[1], sizes[storage], position, frames)
        elif code >= 0 and (place := allocator.place_of(storage)) is not None:
            yield _entry("alloc", place[1], sizes[storage], position, frames)


def _changes(
    before: Mapping[int, int],
    after: Mapping[int, int],
    position: int,
    frames: list[dict[str, Any]],
    *,
    is_expandable: bool,
) -> Iterator[dict[str, Any]]:
    """Yield what was taken from and given to the driver, the latter first, as it happens on a retry."""
    taken, given = ("segment_map", "segment_unmap") if is_expandable else ("segment_alloc", "segment_free")
    for address, nbytes in _without(before, after):
        yield _entry(given, address, nbytes, position, frames)
    for address, nbytes in _without(after, before):
        yield _entry(taken, address, nbytes, position, frames)


def _without(ranges: Mapping[int, int], others: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``ranges`` (address -> bytes) that are in none of ``others``."""
    for start, nbytes in ranges.items():
        stop = start + nbytes
        for other_start, other_nbytes in sorted(others.items()):
            if other_start >= stop or other_start + other_nbytes <= start:
                continue
            if other_start > start:
                yield start, other_start - start
            start = other_start + other_nbytes
        if start < stop:
            yield start, stop - start


def _entry(action: str, address: int, nbytes: int, position: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": nbytes,
        "stream": _STREAM,
        "time_us": position,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": _POOL_ID,
        "frames": frames,
    }


def _describe_segment(
    segment: Segment, trace: MemoryTrace, sizes: Sequence[int], policy: CachingPolicy
) -> dict[str, Any]:
    in_use = [block for block in segment.blocks if block.storage is not None]
    allocated_bytes = sum(block.nbytes for block in in_use)
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.nbytes,
        "allocated_size": allocated_bytes,
        "active_size": allocated_bytes,
        "requested_size": sum(sizes[block.storage] for block in in_use if block.storage is not None),
        "stream": _STREAM,
        "segment_type": "large" if segment.is_large else "small",
        "segment_pool_id": _POOL_ID,
        "is_expandable": policy.expandable_segments,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.nbytes,
                "requested_size": 0 if block.storage is None else sizes[block.storage],
                "state": "inactive" if block.storage is None else "active_allocated",
                "frames": [] if block.storage is None else _frames(trace, block.storage),
            }
            for block in segment.blocks
        ],
    }


def _frames(trace: MemoryTrace, storage: int) -> list[dict[str, Any]]:
    """Return the operator and the purpose of a storage as stack frames, the innermost first."""
    category = trace.storages[storage].category
    operation = trace.operations[trace.storages[storage].operation]
    when = operation.phase.value if operation.step < 0 else f"{operation.phase.value} of step {operation.step}"
    return [
        {"name": operation.name, "filename": operation.module or "outside modules", "line": 0},
        {"name": category.value, "filename": when, "line": 0},
    ]
