"""What lies behind the peaks of an estimate: parts, steps, causes of uncertainty. Pure functions of replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dnnmem_tune.allocators.base import AllocatorStats
from dnnmem_tune.estimate.report import Breakdown, Interval, Reason, StepPeak
from dnnmem_tune.ir.trace import Category, MemoryTrace


def live_storages(events: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the storages that are allocated after ``events``, in the order of their allocation."""
    live: dict[int, None] = {}
    for code in events:
        if code >= 0:
            live[code] = None
        else:
            del live[~code]
    return [index for index in live if sizes[index]]


def break_down(
    trace: MemoryTrace, sizes: Sequence[int], event: int, stats: AllocatorStats, context_bytes: int
) -> Breakdown:
    """Sort what is live after one event by category and by module.

    Args:
        trace: The job.
        sizes: Bytes of every storage; 0 for those that are not allocated.
        event: Index of the event.
        stats: The allocator's state after it.
        context_bytes: Device memory outside the allocator.

    """
    categories: Counter[Category] = Counter()
    modules: Counter[str] = Counter()
    for index in live_storages(trace.events[: event + 1], sizes):
        storage = trace.storages[index]
        categories[storage.category] += sizes[index]
        modules[trace.operations[storage.operation].module] += sizes[index]
    code = trace.events[event]
    operation = trace.operations[trace.storages[code if code >= 0 else ~code].operation]
    return Breakdown(
        event=event,
        operation=operation.name,
        module=operation.module,
        categories=dict(categories.most_common()),
        modules=dict(modules.most_common()),
        internal_fragmentation_bytes=stats.allocated_bytes - stats.requested_bytes,
        allocator_reservation_bytes=stats.reserved_bytes - stats.allocated_bytes,
        context_bytes=context_bytes,
    )


def peaks_between_marks(trace: MemoryTrace, history: Sequence[AllocatorStats]) -> tuple[StepPeak, ...]:
    """Return the peaks of each part of the trace that ends at a mark; parts without events are left out."""
    peaks = []
    start = 0
    for mark in trace.marks:
        part = history[start : mark.event]
        if part:
            peaks.append(
                StepPeak(
                    name=mark.name,
                    requested_bytes=max(stats.requested_bytes for stats in part),
                    allocated_bytes=max(stats.allocated_bytes for stats in part),
                    reserved_bytes=max(stats.reserved_bytes for stats in part),
                )
            )
        start = mark.event
    return tuple(peaks)


def reason_from(cause: str, text: str, peak_bytes: int, alternatives: Iterable[int]) -> Reason:
    """Return how far other assumptions move a peak.

    Args:
        cause: What is not known.
        text: One sentence for a reader.
        peak_bytes: The peak as estimated.
        alternatives: The peak under each other assumption.

    """
    others = [peak_bytes, *alternatives]
    return Reason(
        cause=cause,
        below_bytes=peak_bytes - min(others),
        above_bytes=max(others) - peak_bytes,
        text=text,
    )


def span(peak_bytes: int, reasons: Iterable[Reason]) -> Interval:
    """Return the interval in which every cause is at its worst at the same time."""
    moving = tuple(reason for reason in reasons if reason.below_bytes or reason.above_bytes)
    return Interval(
        low_bytes=peak_bytes - sum(reason.below_bytes for reason in moving),
        high_bytes=peak_bytes + sum(reason.above_bytes for reason in moving),
        reasons=moving,
    )
