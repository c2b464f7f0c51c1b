"""An allocator without rounding, cache or fragmentation: the least that any allocator takes."""

from __future__ import annotations

from collections.abc import Sequence

from dnnmem_tune.allocators.base import AllocatorStats


class ExactAllocator:
    """Takes what is requested from the driver, byte for byte, and returns it at once.

    A batch that does not fit here fits under no allocator, so a search can reject it early.

    Example:
        >>> allocator = ExactAllocator()
        >>> allocator.run([0, 1, ~0], [100, 50])
        3
        >>> allocator.peak.reserved_bytes, allocator.stats.reserved_bytes
        (150, 50)

    """

    num_retries = 0

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.peak_allocated_event = -1
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._peak_bytes = 0
        self._in_use: dict[int, int] = {}

    @property
    def stats(self) -> AllocatorStats:
        """The bytes in use now."""
        return AllocatorStats(self._used_bytes, self._used_bytes, self._used_bytes)

    @property
    def peak(self) -> AllocatorStats:
        """The largest of each so far."""
        return AllocatorStats(self._peak_bytes, self._peak_bytes, self._peak_bytes)

    @property
    def peak_reserved_event(self) -> int:
        """Number of the event that first reached the peak; -1 before any."""
        return self.peak_allocated_event

    @property
    def free_device_bytes(self) -> int | None:
        """What the driver could still hand out; ``None`` where there is no limit."""
        return None if self._capacity_bytes is None else self._capacity_bytes - self._used_bytes

    def run(self, events: Sequence[int], sizes: Sequence[int], start: int = 0, stop: int | None = None) -> int:
        """Apply events; see ``Allocator.run``."""
        stop = len(events) if stop is None else stop
        for position in range(start, stop):
            code = events[position]
            if code < 0:
                self._used_bytes -= self._in_use.pop(~code, 0)
                continue
            used_bytes = self._used_bytes + sizes[code]
            if self._capacity_bytes is not None and used_bytes > self._capacity_bytes:
                return position
            self._used_bytes = used_bytes
            self._in_use[code] = sizes[code]
            if used_bytes > self._peak_bytes:
                self._peak_bytes = used_bytes
                self.peak_allocated_event = position
        return stop

    def check(self) -> None:
        """Verify the invariants of the state; see ``Allocator.check``."""
        assert self._used_bytes == sum(self._in_use.values())
        assert self._used_bytes <= self._peak_bytes
        assert self._capacity_bytes is None or self._peak_bytes <= self._capacity_bytes
