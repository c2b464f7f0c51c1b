"""Free blocks: by size in the sorted list of their pool, and by either end in one table for all.

A free block is one number, ``size << 56 | address``, and two table entries by which its
neighbours find it. An estimate replays thousands of events in milliseconds that way; block
objects with links take three times as long.
"""

from __future__ import annotations

from bisect import bisect_left, insort

SIZE_SHIFT = 56
ADDRESS_MASK = (1 << SIZE_SHIFT) - 1


class FreeBlocks:
    """The free blocks of all pools, found by their ends."""

    __slots__ = ("size_at", "start_of")

    def __init__(self) -> None:
        self.size_at: dict[int, int] = {}
        """Address of a free block -> its size."""

        self.start_of: dict[int, int] = {}
        """Address at which a free block ends -> the address at which it starts."""


class Pool:
    """The free blocks of one pool, in order, and its segments.

    ``CachingAllocator.run`` works on these tables directly; everything rarer comes here.
    """

    __slots__ = ("blocks", "keys", "min_rest_bytes", "segments")

    def __init__(self, blocks: FreeBlocks, min_rest_bytes: int) -> None:
        self.blocks = blocks

        self.min_rest_bytes = min_rest_bytes
        """What must be left over for a block to be split."""

        self.keys: list[int] = []
        """``size << 56 | address`` of each free block, in order."""

        self.segments: dict[int, int] = {}
        """Address of a segment -> its size."""

    def insert(self, address: int, nbytes: int) -> None:
        """Add a free block and merge it with free neighbours."""
        if address in self.blocks.start_of:
            start = self.blocks.start_of[address]
            nbytes += self.remove(start)
            address = start
        if address + nbytes in self.blocks.size_at:
            nbytes += self.remove(address + nbytes)
        insort(self.keys, nbytes << SIZE_SHIFT | address)
        self.blocks.size_at[address] = nbytes
        self.blocks.start_of[address + nbytes] = address

    def remove(self, address: int) -> int:
        """Take out the free block at ``address`` and return its size."""
        nbytes = self.blocks.size_at.pop(address)
        del self.blocks.start_of[address + nbytes]
        del self.keys[bisect_left(self.keys, nbytes << SIZE_SHIFT | address)]
        return nbytes

    def whole_segments(self) -> list[int]:
        """Return the addresses of segments that are one free block, the smallest first."""
        return [
            key & ADDRESS_MASK for key in self.keys if self.segments.get(key & ADDRESS_MASK) == key >> SIZE_SHIFT
        ]
