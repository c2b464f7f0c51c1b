"""Expandable segments: one long address range per pool that is backed by memory page by page.

A range is tiled by blocks in use, free blocks and unmapped blocks. Free blocks are those of
the pool, as without this option; unmapped ones are kept here.

Source: Note [Expandable Segments] and the functions named below in ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from dnnmem_tune.allocators.driver import Driver
from dnnmem_tune.allocators.pool import ADDRESS_MASK, SIZE_SHIFT, Pool


class Range:
    """The unmapped blocks of one pool, which together with its own blocks tile the address ranges."""

    __slots__ = ("page_bytes", "pool", "size_at", "start_of", "starts")

    def __init__(self, pool: Pool, page_bytes: int) -> None:
        self.pool = pool
        self.page_bytes = page_bytes
        """What is mapped or unmapped at once."""
        self.starts: list[int] = []
        """Addresses of the unmapped blocks, in order."""
        self.size_at: dict[int, int] = {}
        """Address of an unmapped block -> its size."""
        self.start_of: dict[int, int] = {}
        """Address at which an unmapped block ends -> the address at which it starts."""

    def insert(self, address: int, nbytes: int) -> None:
        """Add an unmapped block and merge it with unmapped neighbours."""
        if address in self.start_of:
            start = self.start_of[address]
            nbytes += self.remove(start)
            address = start
        if address + nbytes in self.size_at:
            nbytes += self.remove(address + nbytes)
        insort(self.starts, address)
        self.size_at[address] = nbytes
        self.start_of[address + nbytes] = address

    def remove(self, address: int) -> int:
        """Take out the unmapped block at ``address`` and return its size."""
        nbytes = self.size_at.pop(address)
        del self.start_of[address + nbytes]
        del self.starts[bisect_left(self.starts, address)]
        return nbytes


class ExpandableSegments:
    """Maps and unmaps pages for the two pools of an allocator.

    Args:
        driver: Where the pages come from.
        total_bytes: The card's total; a range is an eighth longer.
        page_bytes: Of each pool, what is mapped at once: the size of its segments without this option.

    """

    def __init__(self, driver: Driver, total_bytes: int, page_bytes: dict[Pool, int]) -> None:
        self._driver = driver
        self._range_bytes = total_bytes + total_bytes // 8
        self._ranges = {pool: Range(pool, nbytes) for pool, nbytes in page_bytes.items()}

    def best_fit(self, pool: Pool, index: int) -> int:
        """Return the place in ``pool.keys`` of the block to take, given the first that is large enough.

        A block counts with the unmapped memory behind it, so that one which can grow is left alone.

        Source: ``get_free_block``.
        """
        keys = pool.keys
        unmapped = self._ranges[pool].size_at

        def size_when_grown(key: int) -> int:
            nbytes = key >> SIZE_SHIFT
            return nbytes + unmapped.get((key & ADDRESS_MASK) + nbytes, 0)

        while index + 1 < len(keys) and size_when_grown(keys[index + 1]) < size_when_grown(keys[index]):
            index += 1
        return index

    def grow(self, pool: Pool, size: int) -> tuple[tuple[int, int] | None, int]:
        """Map pages until a free block of ``size`` bytes exists, and take it out of the pool.

        Returns:
            Address and size of the block, or nothing when out of memory, and the bytes that
            were mapped, which may be some in either case.

        Source: ``try_allocate_expandable_block``.
        """
        space = self._ranges[pool]
        address = self._lowest_room(space, size)
        mapped_bytes = 0
        if address in space.size_at:
            mapped_bytes = self._map(space, address, min(size, space.size_at[address]))
            if not mapped_bytes:
                return None, 0
        while pool.blocks.size_at[address] < size:
            end = address + pool.blocks.size_at[address]
            added_bytes = self._map(space, end, min(size - pool.blocks.size_at[address], space.size_at[end]))
            mapped_bytes += added_bytes
            if not added_bytes:
                return None, mapped_bytes
        return (address, pool.remove(address)), mapped_bytes

    def release(self, pool: Pool) -> int:
        """Unmap every page that lies in a free block, and return the bytes that were unmapped.

        Source: ``release_blocks`` and ``unmap_block``.
        """
        space = self._ranges[pool]
        released_bytes = 0
        for key in list(pool.keys):
            released_bytes += self._unmap(space, key & ADDRESS_MASK)
        return released_bytes

    def unmapped(self) -> dict[int, int]:
        """Return address and size of all unmapped blocks."""
        return {address: nbytes for space in self._ranges.values() for address, nbytes in space.size_at.items()}

    def _lowest_room(self, space: Range, size: int) -> int:
        """Return the lowest address where free and unmapped blocks give room, in a new range if need be.

        Source: ``find_expandable_block``.
        """
        for unmapped in self._from_lowest(space):
            address = space.pool.blocks.start_of.get(unmapped, unmapped)
            end = address
            while end - address < size:
                nbytes = space.pool.blocks.size_at.get(end) or space.size_at.get(end)
                if nbytes is None:
                    break
                end += nbytes
            if end - address >= size:
                return address
        nbytes = -(-self._range_bytes // space.page_bytes) * space.page_bytes
        address = self._driver.reserve(nbytes)
        space.pool.segments[address] = nbytes
        space.insert(address, nbytes)
        return address

    def _from_lowest(self, space: Range) -> Iterator[int]:
        """Yield the unmapped blocks in the order of real addresses, on which the newest range is the lowest."""
        for base, nbytes in reversed(space.pool.segments.items()):
            first = bisect_left(space.starts, base)
            last = bisect_left(space.starts, base + nbytes)
            yield from space.starts[first:last]

    def _map(self, space: Range, address: int, nbytes: int) -> int:
        """Back the start of an unmapped block with memory, and return how much; 0 when out of memory.

        Source: ``map_block``. The driver is asked page by page there, and gives all back when one fails.
        """
        mapped_bytes = -(-nbytes // space.page_bytes) * space.page_bytes
        if not self._driver.take(mapped_bytes):
            return 0
        rest = space.remove(address) - mapped_bytes
        if rest:
            space.insert(address + mapped_bytes, rest)
        space.pool.insert(address, mapped_bytes)
        return mapped_bytes

    def _unmap(self, space: Range, address: int) -> int:
        """Give back the whole pages of a free block, and return how much that is."""
        pool, page = space.pool, space.page_bytes
        end = address + pool.blocks.size_at[address]
        base = self._driver.range_of(address)
        first = base + -(-(address - base) // page) * page
        last = base + (end - base) // page * page
        if first >= last:
            return 0
        pool.remove(address)
        if first > address:
            pool.insert(address, first - address)
        if last < end:
            pool.insert(last, end - last)
        space.insert(first, last - first)
        self._driver.give(last - first)
        if space.size_at.get(base) == pool.segments[base]:
            space.remove(base)
            del pool.segments[base]
        return last - first
