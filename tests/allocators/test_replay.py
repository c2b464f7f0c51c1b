"""Replaying a trace: outcomes, optional storages, peaks and history."""

from __future__ import annotations

import pytest

from dnnmem_tune.allocators.base import Allocator, AllocatorStats
from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.exact import ExactAllocator
from dnnmem_tune.allocators.policy import CachingPolicy
from dnnmem_tune.allocators.replay import Completed, OutOfMemory, history, replay
from dnnmem_tune.units import GIB, MIB


def test_peaks_are_of_each_figure_at_its_own_event() -> None:
    """Allocated peaks at event 1; reserved grows once more at event 4, for a small block."""
    events, sizes = [0, 1, ~1, ~0, 2], [30 * MIB, 30 * MIB, 100]

    timeline = replay(events, sizes, CachingAllocator())

    assert timeline.outcome == Completed()
    assert timeline.peak == AllocatorStats(60 * MIB, 60 * MIB, 62 * MIB)
    assert timeline.final == AllocatorStats(100, 512, 62 * MIB)
    assert (timeline.peak_allocated_event, timeline.peak_reserved_event) == (1, 4)


def test_out_of_memory_is_a_value() -> None:
    """It names the event, the storage, the request, and what the driver had left."""
    timeline = replay([0, 1, ~0], [30 * MIB, 50 * MIB], CachingAllocator(capacity_bytes=70 * MIB))

    assert timeline.outcome == OutOfMemory(
        event=1, storage=1, requested_bytes=50 * MIB, free_device_bytes=40 * MIB
    )
    assert timeline.final.allocated_bytes == 30 * MIB
    assert timeline.num_retries == 1


def test_optional_storage_is_skipped_after_the_cache_was_released() -> None:
    """A workspace that does not fit costs the cache, but not the job."""
    events, sizes = [0, ~0, 1, 2, ~2, 3], [20 * MIB, 30 * MIB, 50 * MIB, 20 * MIB]

    timeline = replay(events, sizes, CachingAllocator(capacity_bytes=60 * MIB), optional={2})

    assert timeline.outcome == Completed()
    assert timeline.skipped == (2,)
    assert timeline.num_retries == 1
    assert timeline.final.allocated_bytes == 50 * MIB


@pytest.mark.parametrize("allocator", [CachingAllocator(capacity_bytes=MIB), ExactAllocator(capacity_bytes=0)])
def test_empty_storages_own_no_block(allocator: Allocator) -> None:
    """Zero bytes are served even where nothing else is."""
    timeline = replay([0, ~0], [0], allocator)

    assert timeline.outcome == Completed()
    assert timeline.peak == AllocatorStats(0, 0, 0)


def test_history_ends_before_the_request_that_fails() -> None:
    """One entry for each event that was applied."""
    stats = history([0, ~0, 1], [100, 300], ExactAllocator(capacity_bytes=200))

    assert stats == [AllocatorStats(100, 100, 100), AllocatorStats(0, 0, 0)]


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("capacity_bytes", [None, 80 * GIB])
def test_absurd_requests_are_out_of_memory(expandable: bool, capacity_bytes: int | None) -> None:
    """A batch of 10^12 asks for exabytes: an answer, not a crash, and the allocator stays sound."""
    allocator = CachingAllocator(CachingPolicy(expandable_segments=expandable), capacity_bytes)

    timeline = replay([0, 1], [MIB, 10**18], allocator)

    assert isinstance(timeline.outcome, OutOfMemory)
    assert timeline.outcome.event == 1
    allocator.check()
