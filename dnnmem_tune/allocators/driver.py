"""The part of the CUDA driver that an allocator sees: a number of pages, and addresses."""

from __future__ import annotations

from bisect import bisect_right, insort

from dnnmem_tune.units import MIB

UNLIMITED = 1 << 50
"""Bytes that stand for no limit: a pebibyte, so that addresses stay within 56 bits whatever is requested."""

_GUARD_BYTES = 2 * MIB
_MIDDLE_ADDRESS = 1 << 55


class Driver:
    """Hands out device memory in whole pages until the capacity is reached.

    Address ranges are in one order, with gaps, so that blocks of two segments never touch. A
    range that was given back is not handed out again, as on real cards it is not soon.

    Args:
        capacity_bytes: What can be handed out; ``None`` is no limit.
        page_bytes: Size of a page; ``cudaMalloc`` takes whole ones off the card.
        descending: Whether each range lies below the last, as those of ``cudaMalloc`` do on real
            cards, or above it.

    """

    __slots__ = ("_descending", "_page_bytes", "_range_starts", "_ranges_end", "capacity_bytes", "used_bytes")

    def __init__(self, capacity_bytes: int | None, page_bytes: int, *, descending: bool) -> None:
        self.capacity_bytes = UNLIMITED if capacity_bytes is None else capacity_bytes
        self.used_bytes = 0
        self._page_bytes = page_bytes
        self._descending = descending
        self._ranges_end = _MIDDLE_ADDRESS
        self._range_starts: list[int] = []

    def malloc(self, nbytes: int) -> int | None:
        """Return the address of a new segment, as ``cudaMalloc`` does, or nothing when out of memory."""
        return self.reserve(nbytes) if self.take(nbytes) else None

    def take(self, nbytes: int) -> bool:
        """Take pages for ``nbytes`` bytes off the card, or none if there are not enough."""
        pages_bytes = self._in_pages(nbytes)
        if self.used_bytes + pages_bytes > self.capacity_bytes:
            return False
        self.used_bytes += pages_bytes
        return True

    def give(self, nbytes: int) -> None:
        """Give the pages of ``nbytes`` bytes back."""
        self.used_bytes -= self._in_pages(nbytes)

    def reserve(self, nbytes: int) -> int:
        """Return the start of a new address range, as ``cuMemAddressReserve`` does; it takes no memory."""
        step = nbytes + _GUARD_BYTES
        if self._descending:
            self._ranges_end -= step
            start = self._ranges_end
        else:
            start = self._ranges_end
            self._ranges_end += step
        insort(self._range_starts, start)
        return start

    def range_of(self, address: int) -> int:
        """Return the start of the range that ``address`` lies in."""
        return self._range_starts[bisect_right(self._range_starts, address) - 1]

    def _in_pages(self, nbytes: int) -> int:
        return -(-nbytes // self._page_bytes) * self._page_bytes
