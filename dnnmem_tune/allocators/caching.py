"""PyTorch's CUDA caching allocator, simulated for one device and one stream.

It decides byte for byte as ``c10/cuda/CUDACachingAllocator.cpp`` of PyTorch 2.14 does: best
fit by (size, address) in a small and a large pool, splitting, merging of free neighbours,
release of the cache and a second attempt when the driver has no more, and then out of memory,
as a value. Not here: several streams, CUDA graphs and other private pools, ``cudaMallocAsync``.

Which of several free blocks of one size is taken decides which is split next, and so what is
reserved. That rule changed between releases: see ``TieBreak``. A block's key orders by (size,
address), and the simulated driver hands out addresses upwards or downwards to suit the rule.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from dnnmem_tune.allocators.base import AllocatorStats
from dnnmem_tune.allocators.driver import UNLIMITED, Driver
from dnnmem_tune.allocators.expandable import ExpandableSegments
from dnnmem_tune.allocators.layout import Block, Segment, check_tiling, contiguous, tiling
from dnnmem_tune.allocators.policy import CachingPolicy, TieBreak
from dnnmem_tune.allocators.pool import ADDRESS_MASK, SIZE_SHIFT, FreeBlocks, Pool


class CachingAllocator:
    """The allocator of one card; see the module.

    Args:
        policy: Constants and options; PyTorch's defaults unless given.
        capacity_bytes: What the driver can hand out, that is the card's total less the context;
            ``None`` is no limit (a pebibyte).
        total_bytes: The card's total, of which ``memory_fraction`` is a share; ``capacity_bytes`` unless given.

    Example:
        >>> allocator = CachingAllocator(capacity_bytes=1 << 30)
        >>> allocator.run([0], [1000])
        1
        >>> allocator.stats
        AllocatorStats(requested_bytes=1000, allocated_bytes=1024, reserved_bytes=2097152)

    """

    def __init__(
        self,
        policy: CachingPolicy | None = None,
        capacity_bytes: int | None = None,
        total_bytes: int | None = None,
    ) -> None:
        self.policy = policy = policy or CachingPolicy()
        self.num_retries = 0
        self.peak_allocated_event = -1
        self.peak_reserved_event = -1
        descending = policy.tie_break is TieBreak.LOWEST_ADDRESS
        self._driver = Driver(capacity_bytes, policy.driver_page_bytes, descending=descending)
        total_bytes = self._driver.capacity_bytes if total_bytes is None else total_bytes
        self._allowed_bytes = UNLIMITED
        if policy.memory_fraction is not None:
            self._allowed_bytes = int(policy.memory_fraction * total_bytes)
        self._requested_bytes = self._allocated_bytes = self._reserved_bytes = 0
        self._peak_requested_bytes = self._peak_allocated_bytes = self._peak_reserved_bytes = 0
        self._addresses: list[int] = []  # of each storage's block
        self._block_bytes: list[int] = []  # of each storage; 0 where it owns no block
        self._free = FreeBlocks()
        self._small = Pool(self._free, policy.min_block_bytes)
        # should_split(): "remaining > kSmallSize", or any block's worth in an expandable segment.
        min_rest_bytes = policy.min_block_bytes if policy.expandable_segments else policy.small_request_bytes + 1
        self._large = Pool(self._free, min_rest_bytes)
        self._max_split_bytes = UNLIMITED if policy.max_split_bytes is None else policy.max_split_bytes
        self._expandable: ExpandableSegments | None = None
        if policy.expandable_segments:
            pages = {self._small: policy.small_segment_bytes, self._large: policy.large_segment_bytes}
            self._expandable = ExpandableSegments(self._driver, total_bytes, pages)
        self._collects = policy.collection_threshold is not None and policy.memory_fraction is not None
        self._clock = 0  # searches of the large pool, by which garbage collection tells a block's age
        self._freed_at: dict[int, int] = {}  # address of a free block -> the clock when it was freed

    @property
    def stats(self) -> AllocatorStats:
        """The bytes in use now."""
        return AllocatorStats(self._requested_bytes, self._allocated_bytes, self._reserved_bytes)

    @property
    def peak(self) -> AllocatorStats:
        """The largest of each so far."""
        return AllocatorStats(self._peak_requested_bytes, self._peak_allocated_bytes, self._peak_reserved_bytes)

    @property
    def free_device_bytes(self) -> int | None:
        """What the driver could still hand out; ``None`` where there is no limit."""
        driver = self._driver
        return None if driver.capacity_bytes == UNLIMITED else driver.capacity_bytes - driver.used_bytes

    @property
    def num_segments(self) -> int:
        """Segments taken from the driver and not given back."""
        return len(self._small.segments) + len(self._large.segments)

    def segments(self) -> list[Segment]:
        """Return all memory taken from the driver, block by block, in order of address."""
        in_use, unmapped = self._in_use(), self._unmapped()
        found: list[Segment] = []
        for pool in (self._small, self._large):
            for start, nbytes in pool.segments.items():
                blocks = tiling(start, nbytes, in_use, self._free.size_at, unmapped)
                found += contiguous(blocks, is_large=pool is self._large)
        return sorted(found, key=lambda segment: segment.address)

    def place_of(self, storage: int) -> tuple[int, int] | None:
        """Return where a storage's block lies, if it owns one: start of its segment, and its own address."""
        if not self._block_bytes[storage]:
            return None
        address = self._addresses[storage]
        return self._driver.range_of(address), address

    def run(  # noqa: C901  one loop, since calls for its parts would double the time of an estimate
        self, events: Sequence[int], sizes: Sequence[int], start: int = 0, stop: int | None = None
    ) -> int:
        """Apply events; see ``Allocator.run``."""
        stop = len(events) if stop is None else stop
        missing = len(sizes) - len(self._addresses)
        self._addresses += [0] * missing
        self._block_bytes += [0] * missing
        addresses, block_bytes = self._addresses, self._block_bytes
        policy, small, large = self.policy, self._small, self._large
        small_keys, large_keys = small.keys, large.keys
        size_at, start_of = self._free.size_at, self._free.start_of
        least_small_rest, least_large_rest = small.min_rest_bytes, large.min_rest_bytes
        small_request_bytes = policy.small_request_bytes
        unit_less_one, unit_mask = policy.min_block_bytes - 1, -policy.min_block_bytes
        rounds_up = bool(policy.roundup_divisions)
        split_below_bytes = UNLIMITED if self._expandable else self._max_split_bytes
        collects = self._collects
        chooses = collects or self._expandable or policy.max_split_bytes is not None
        requested, allocated = self._requested_bytes, self._allocated_bytes
        peak_requested, peak_allocated = self._peak_requested_bytes, self._peak_allocated_bytes
        peak_event = self.peak_allocated_event

        for position in range(start, stop):
            code = events[position]
            if code >= 0:
                nbytes = sizes[code]
                if not nbytes:
                    continue
                size = policy.round_size(nbytes) if rounds_up else (nbytes + unit_less_one) & unit_mask
                if size <= small_request_bytes:
                    keys, least_rest = small_keys, least_small_rest
                else:
                    keys, least_rest = large_keys, least_large_rest
                place = bisect_left(keys, size << SIZE_SHIFT)
                if chooses:
                    place = self._choose(small if size <= small_request_bytes else large, size, place)
                if place < len(keys):
                    key = keys[place]
                    del keys[place]
                    address = key & ADDRESS_MASK
                    block = key >> SIZE_SHIFT
                    del size_at[address]
                else:
                    found = self._obtain(small if size <= small_request_bytes else large, size, position)
                    if found is None:
                        stop = position
                        break
                    address, block = found
                rest = block - size
                if rest >= least_rest and size < split_below_bytes:
                    middle = address + size
                    insort(keys, rest << SIZE_SHIFT | middle)
                    size_at[middle] = rest
                    start_of[address + block] = middle
                    block = size
                else:
                    start_of.pop(address + block, None)
                addresses[code] = address
                block_bytes[code] = block
                requested += nbytes
                allocated += block
                if allocated > peak_allocated:
                    peak_allocated = allocated
                    peak_event = position
                if requested > peak_requested:
                    peak_requested = requested
            else:
                code = ~code
                block = block_bytes[code]
                if not block:
                    continue
                block_bytes[code] = 0
                requested -= sizes[code]
                allocated -= block
                # A block of the small pool is always split down to its request, so its size tells its pool.
                keys = small_keys if block <= small_request_bytes else large_keys
                address = addresses[code]
                end = address + block
                if address in start_of:
                    address = start_of.pop(address)
                    left = size_at.pop(address)
                    del keys[bisect_left(keys, left << SIZE_SHIFT | address)]
                    block += left
                if end in size_at:
                    right = size_at.pop(end)
                    del keys[bisect_left(keys, right << SIZE_SHIFT | end)]
                    block += right
                    end += right
                insort(keys, block << SIZE_SHIFT | address)
                size_at[address] = block
                start_of[end] = address
                if collects:
                    self._freed_at[address] = self._clock

        self._requested_bytes, self._allocated_bytes = requested, allocated
        self._peak_requested_bytes, self._peak_allocated_bytes = peak_requested, peak_allocated
        self.peak_allocated_event = peak_event
        return stop

    def empty_cache(self) -> None:
        """Give every free segment, or free page of an expandable one, back to the driver.

        Source: ``release_cached_blocks``; also what ``torch.cuda.empty_cache`` does.
        """
        for pool in (self._large, self._small):
            if self._expandable:
                self._reserved_bytes -= self._expandable.release(pool)
            else:
                for address in pool.whole_segments():
                    self._release(pool, address)

    def _choose(self, pool: Pool, size: int, place: int) -> int:
        """Return the place in ``pool.keys`` of the block to take, or one past the end for none.

        Args:
            pool: Where to look.
            size: Of the block, rounded.
            place: The first block that is large enough, which is the answer under default options.

        Source: ``get_free_block``.
        """
        keys = pool.keys
        if self._collects:
            self._clock += pool is self._large
        if place == len(keys):
            return place
        if self._expandable:
            place = self._expandable.best_fit(pool, place)
        block = keys[place] >> SIZE_SHIFT
        if size < self._max_split_bytes:
            return place if block < self._max_split_bytes else len(keys)
        rounding_bytes = self.policy.max_non_split_rounding_bytes or self.policy.large_segment_bytes
        return place if block < size + rounding_bytes else len(keys)

    def _obtain(self, pool: Pool, size: int, position: int) -> tuple[int, int] | None:
        """Return address and size of a block from the driver, releasing cached memory if need be.

        Source: ``malloc``, ``alloc_block``.
        """
        if self._collects:
            self._collect_garbage()
        block = self._grow(pool, size)
        if block is None and self._release_enough(pool, size):
            block = self._grow(pool, size)
        if block is None:
            self.empty_cache()
            self.num_retries += 1
            block = self._grow(pool, size)
        if self._reserved_bytes > self._peak_reserved_bytes:
            self._peak_reserved_bytes = self._reserved_bytes
            self.peak_reserved_event = position
        return block

    def _grow(self, pool: Pool, size: int) -> tuple[int, int] | None:
        if self._is_beyond_fraction(size):
            return None
        if self._expandable:
            block, mapped_bytes = self._expandable.grow(pool, size)
            self._reserved_bytes += mapped_bytes
            return block
        nbytes = self.policy.segment_size(size)
        address = self._driver.malloc(nbytes)
        if address is None:
            return None
        pool.segments[address] = nbytes
        self._reserved_bytes += nbytes
        return address, nbytes

    def _is_beyond_fraction(self, size: int) -> bool:
        return self._reserved_bytes + self.policy.segment_size(size) > self._allowed_bytes

    def _release(self, pool: Pool, address: int) -> int:
        """Give the segment at ``address``, one free block, back to the driver and return its size."""
        nbytes = pool.remove(address)
        del pool.segments[address]
        self._freed_at.pop(address, None)
        self._driver.give(nbytes)
        self._reserved_bytes -= nbytes
        return nbytes

    def _release_enough(self, pool: Pool, size: int) -> bool:
        """Release unsplittable cached blocks until ``size`` bytes could be had; say whether they could.

        Source: ``release_available_cached_blocks``. Free blocks of that size are whole segments.
        """
        if self.policy.max_split_bytes is None:
            return False
        wanted = max(size, self._max_split_bytes)
        place = bisect_left(pool.keys, wanted << SIZE_SHIFT)
        if place < len(pool.keys):
            self._release(pool, pool.keys[place] & ADDRESS_MASK)
            return True
        released = 0
        while released < wanted and pool.keys and pool.keys[-1] >> SIZE_SHIFT >= self._max_split_bytes:
            released += self._release(pool, pool.keys[-1] & ADDRESS_MASK)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Release idle segments of the large pool, the longest idle first, while above the threshold.

        Source: ``garbage_collect_cached_blocks``.
        """
        threshold = int((self.policy.collection_threshold or 0.0) * self._allowed_bytes)
        excess = self._reserved_bytes - threshold
        pool = self._large
        idle = {address: self._clock - self._freed_at[address] for address in pool.whole_segments()}
        while excess > 0 and idle:
            average_age = sum(idle.values()) / len(idle)
            # No block is younger than all are on average, so each round releases at least one.
            for address in [address for address, age in idle.items() if age >= average_age]:
                excess -= self._release(pool, address)
                del idle[address]

    def _in_use(self) -> dict[int, Block]:
        return {
            address: Block(address, nbytes, storage)
            for storage, (address, nbytes) in enumerate(zip(self._addresses, self._block_bytes, strict=True))
            if nbytes
        }

    def _unmapped(self) -> dict[int, int]:
        return self._expandable.unmapped() if self._expandable else {}

    def check(self) -> None:
        """Verify the invariants of the state; see ``Allocator.check``."""
        in_use, free, unmapped = self._in_use(), self._free.size_at, self._unmapped()
        assert self._free.start_of == {address + nbytes: address for address, nbytes in free.items()}
        keys = [key for pool in (self._small, self._large) for key in pool.keys]
        assert set(keys) == {nbytes << SIZE_SHIFT | address for address, nbytes in free.items()}
        tiled_bytes = 0
        for pool in (self._small, self._large):
            assert pool.keys == sorted(pool.keys)
            for start, nbytes in pool.segments.items():
                blocks = tiling(start, nbytes, in_use, free, unmapped)
                check_tiling(start, nbytes, blocks)
                tiled_bytes += sum(block.nbytes for block in blocks if block.is_mapped)
        assert sum(block.nbytes for block in in_use.values()) == self._allocated_bytes >= self._requested_bytes
        assert self._allocated_bytes + sum(free.values()) == self._reserved_bytes == tiled_bytes
        assert self._reserved_bytes <= self._driver.used_bytes <= self._driver.capacity_bytes
        assert self._reserved_bytes <= self._allowed_bytes
