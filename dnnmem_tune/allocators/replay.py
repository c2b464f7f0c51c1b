"""Replay a trace's events through an allocator."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dnnmem_tune.allocators.base import Allocator, AllocatorStats


@dataclass(frozen=True, slots=True)
class Completed:
    """Every request was served, but for optional ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """A request that the allocator could not serve; the job ends there."""

    event: int
    """Number of the event."""

    storage: int
    """What was to be allocated."""

    requested_bytes: int
    """Its size."""

    free_device_bytes: int | None
    """What the driver could still hand out, once the cache was released."""


Outcome = Completed | OutOfMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What a replay came to."""

    peak: AllocatorStats
    """The largest of each figure, reached at different events in general."""

    final: AllocatorStats
    """After the last event that was applied."""

    peak_allocated_event: int
    """The first event with the peak of allocated bytes; -1 where nothing was allocated."""

    peak_reserved_event: int
    """The first event with the peak of reserved bytes; -1 where nothing was reserved."""

    outcome: Outcome

    num_retries: int
    """How often the cache was released to serve a request. PyTorch: ``num_alloc_retries``."""

    skipped: tuple[int, ...] = ()
    """Optional storages that there was no room for."""


def replay(
    events: Sequence[int], sizes: Sequence[int], allocator: Allocator, *, optional: Collection[int] = ()
) -> Timeline:
    """Apply events in order until the last, or until one cannot be served.

    Args:
        events: As in ``MemoryTrace.events``: ``i`` allocates storage ``i``, ``~i`` frees it.
        sizes: Bytes of each storage; 0 means that it owns no block.
        allocator: A fresh one; it is left in the state after the last event.
        optional: Storages that the job goes on without when there is no room, after the allocator
            released its cache in vain, as PyTorch does for a convolution's workspace.

    Example:
        >>> from dnnmem_tune.allocators.exact import ExactAllocator
        >>> timeline = replay([0, 1, ~0], [100, 50], ExactAllocator(capacity_bytes=120))
        >>> timeline.outcome
        OutOfMemory(event=1, storage=1, requested_bytes=50, free_device_bytes=20)

    """
    skipped = []
    outcome: Outcome = Completed()
    position = allocator.run(events, sizes)
    while position < len(events):
        storage = events[position]
        if storage not in optional:
            outcome = OutOfMemory(
                event=position,
                storage=storage,
                requested_bytes=sizes[storage],
                free_device_bytes=allocator.free_device_bytes,
            )
            break
        skipped.append(storage)
        position = allocator.run(events, sizes, position + 1)
    return Timeline(
        peak=allocator.peak,
        final=allocator.stats,
        peak_allocated_event=allocator.peak_allocated_event,
        peak_reserved_event=allocator.peak_reserved_event,
        outcome=outcome,
        num_retries=allocator.num_retries,
        skipped=tuple(skipped),
    )


def history(
    events: Sequence[int], sizes: Sequence[int], allocator: Allocator, *, optional: Collection[int] = ()
) -> list[AllocatorStats]:
    """Return the bytes in use after each event, up to the one that cannot be served.

    Slower than ``replay`` by a factor of four; for plots.

    Args:
        events: As for ``replay``.
        sizes: As for ``replay``.
        allocator: As for ``replay``.
        optional: As for ``replay``.

    """
    after_each = []
    for position, code in enumerate(events):
        if allocator.run(events, sizes, position, position + 1) == position and code not in optional:
            break
        after_each.append(allocator.stats)
    return after_each
