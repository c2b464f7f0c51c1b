"""The part of the CUDA driver that an allocator sees: a number of pages, and addresses."""

from __future__ import annotations

from dnnmem_tune.units import MIB

UNLIMITED = 1 << 62
"""Bytes; more than any card has."""

_GUARD_BYTES = 2 * MIB
_HIGHEST_ADDRESS = 1 << 47


class Driver:
    """Hands out device memory in whole pages until the capacity is reached.

    Each address range lies below the last, with a gap, so that blocks of two segments never touch.

    Source: ``cudaMalloc`` takes pages of 2 MiB off the card; the addresses it returns on real
    cards descend, and a range that was given back is not handed out again soon.
    """

    __slots__ = ("_lowest_address", "_page_bytes", "capacity_bytes", "used_bytes")

    def __init__(self, capacity_bytes: int | None, page_bytes: int) -> None:
        self.capacity_bytes = UNLIMITED if capacity_bytes is None else capacity_bytes
        self.used_bytes = 0
        self._page_bytes = page_bytes
        self._lowest_address = _HIGHEST_ADDRESS

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
        self._lowest_address -= nbytes + _GUARD_BYTES
        return self._lowest_address

    def _in_pages(self, nbytes: int) -> int:
        return -(-nbytes // self._page_bytes) * self._page_bytes
