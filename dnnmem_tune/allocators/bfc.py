"""TensorFlow's BFC allocator, simulated for one device and one stream.

It decides byte for byte as ``xla/tsl/framework/bfc_allocator.cc`` of TensorFlow 2.21 does: best
fit by (size, address), splitting at twice the request or at 128 MiB of slack, merging of free
neighbours within a region, regions that double, and free regions given back before it fails.

TensorFlow keeps free chunks in 21 bins by powers of two and searches them upwards. Bins hold
disjoint ranges of sizes, so the first chunk found is the smallest that is large enough, and the
lowest of its size: one sorted list of ``size << 56 | address`` gives the same answer.

Not here: the ten seconds that a request waits for other threads to free memory, chunks with
timestamps (several streams), and smaller regions where the driver has less than was promised.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from dnnmem_tune.allocators.base import AllocatorStats
from dnnmem_tune.allocators.bfc_policy import BfcPolicy
from dnnmem_tune.allocators.pool import ADDRESS_MASK, SIZE_SHIFT, FreeBlocks, Pool

_UNLIMITED = 1 << 50
_REGION_GAP_BYTES = 1 << 30
"""Between two regions, so that their chunks never touch; regions are merged for virtual memory only."""

_FIRST_ADDRESS = 1 << 55
"""Each region lies below the last, as those of ``cudaMalloc`` do on real cards."""


class BfcAllocator:
    """The allocator of one card; see the module.

    What counts as *reserved*: with growth the regions; without, where the whole limit is taken at
    once, the part of it that a chunk has reached so far, since that is what a smaller card needs.

    Args:
        policy: Constants and options; TensorFlow's defaults unless given.
        limit_bytes: What may be reserved; ``None`` is no limit (a pebibyte).

    Example:
        >>> allocator = BfcAllocator(BfcPolicy(allow_growth=True), 1 << 30)
        >>> allocator.run([0], [1000])
        1
        >>> allocator.stats
        AllocatorStats(requested_bytes=1000, allocated_bytes=1024, reserved_bytes=2097152)

    """

    def __init__(self, policy: BfcPolicy | None = None, limit_bytes: int | None = None) -> None:
        self.policy = policy = policy or BfcPolicy()
        self.num_retries = 0
        self.peak_allocated_event = -1
        self.peak_reserved_event = -1
        self._limit_bytes = _UNLIMITED if limit_bytes is None else limit_bytes
        self._slack_bytes = policy.max_slack_bytes
        if policy.fragmentation_fraction > 0:
            self._slack_bytes = max(1, int(policy.fragmentation_fraction * self._limit_bytes))
        self._next_region_bytes = (
            policy.first_region_bytes if policy.allow_growth else self._rounded(self._limit_bytes)
        )
        self._requested_bytes = self._allocated_bytes = self._region_bytes = self._reached_bytes = 0
        self._peak_requested_bytes = self._peak_allocated_bytes = self._peak_region_bytes = 0
        self._addresses: list[int] = []  # of each storage's chunk
        self._chunk_bytes: list[int] = []  # of each storage; 0 where it owns none
        self._free = FreeBlocks()
        self._pool = Pool(self._free, policy.min_chunk_bytes)
        self._lowest_address = _FIRST_ADDRESS

    @property
    def stats(self) -> AllocatorStats:
        """The bytes in use now; allocated is what ``get_memory_info`` calls current."""
        reserved = self._region_bytes if self.policy.allow_growth else self._reached_bytes
        return AllocatorStats(self._requested_bytes, self._allocated_bytes, reserved)

    @property
    def peak(self) -> AllocatorStats:
        """The largest of each so far; allocated is what ``get_memory_info`` calls peak."""
        reserved = self._peak_region_bytes if self.policy.allow_growth else self._reached_bytes
        return AllocatorStats(self._peak_requested_bytes, self._peak_allocated_bytes, reserved)

    @property
    def free_device_bytes(self) -> int | None:
        """What could still be served at most: free chunks and what was not taken yet, within the limit."""
        return None if self._limit_bytes == _UNLIMITED else self._limit_bytes - self._allocated_bytes

    @property
    def regions(self) -> tuple[int, ...]:
        """Sizes of the regions in the order in which they were taken."""
        return tuple(self._pool.segments.values())

    def run(  # noqa: C901  one loop, since calls for its parts would double the time of an estimate
        self, events: Sequence[int], sizes: Sequence[int], start: int = 0, stop: int | None = None
    ) -> int:
        """Apply events; see ``Allocator.run``."""
        stop = len(events) if stop is None else stop
        missing = len(sizes) - len(self._addresses)
        self._addresses += [0] * missing
        self._chunk_bytes += [0] * missing
        addresses, chunk_bytes = self._addresses, self._chunk_bytes
        keys, size_at, start_of = self._pool.keys, self._free.size_at, self._free.start_of
        unit_less_one, unit_mask = self.policy.min_chunk_bytes - 1, -self.policy.min_chunk_bytes
        slack_bytes, tracks_reach = self._slack_bytes, not self.policy.allow_growth
        requested, allocated = self._requested_bytes, self._allocated_bytes
        peak_requested, peak_allocated = self._peak_requested_bytes, self._peak_allocated_bytes
        reached, reached_event = self._reached_bytes, self.peak_reserved_event
        peak_event = self.peak_allocated_event
        base = self._lowest_address

        for position in range(start, stop):
            code = events[position]
            if code >= 0:
                nbytes = sizes[code]
                if not nbytes:
                    continue
                size = (nbytes + unit_less_one) & unit_mask
                place = bisect_left(keys, size << SIZE_SHIFT)
                if place == len(keys):
                    if not self._obtain(size, position):
                        stop = position
                        break
                    if not tracks_reach:
                        reached_event = self.peak_reserved_event
                    base = self._lowest_address
                    place = bisect_left(keys, size << SIZE_SHIFT)
                key = keys[place]
                del keys[place]
                address = key & ADDRESS_MASK
                chunk = key >> SIZE_SHIFT
                del size_at[address]
                rest = chunk - size
                if rest >= size or rest >= slack_bytes:
                    middle = address + size
                    insort(keys, rest << SIZE_SHIFT | middle)
                    size_at[middle] = rest
                    start_of[address + chunk] = middle
                    chunk = size
                else:
                    start_of.pop(address + chunk, None)
                addresses[code] = address
                chunk_bytes[code] = chunk
                requested += nbytes
                allocated += chunk
                if allocated > peak_allocated:
                    peak_allocated = allocated
                    peak_event = position
                if requested > peak_requested:
                    peak_requested = requested
                if tracks_reach and address + chunk - base > reached:
                    reached = address + chunk - base
                    reached_event = position
            else:
                code = ~code
                chunk = chunk_bytes[code]
                if not chunk:
                    continue
                chunk_bytes[code] = 0
                requested -= sizes[code]
                allocated -= chunk
                address = addresses[code]
                end = address + chunk
                if address in start_of:
                    address = start_of.pop(address)
                    left = size_at.pop(address)
                    del keys[bisect_left(keys, left << SIZE_SHIFT | address)]
                    chunk += left
                if end in size_at:
                    right = size_at.pop(end)
                    del keys[bisect_left(keys, right << SIZE_SHIFT | end)]
                    chunk += right
                    end += right
                insort(keys, chunk << SIZE_SHIFT | address)
                size_at[address] = chunk
                start_of[end] = address

        self._requested_bytes, self._allocated_bytes = requested, allocated
        self._peak_requested_bytes, self._peak_allocated_bytes = peak_requested, peak_allocated
        self._reached_bytes, self.peak_reserved_event = reached, reached_event
        self.peak_allocated_event = peak_event
        return stop

    def place_of(self, storage: int) -> tuple[int, int] | None:
        """Return where a storage's chunk lies, if it owns one: number of its region, and offset in it."""
        if not self._chunk_bytes[storage]:
            return None
        address = self._addresses[storage]
        for number, (base, nbytes) in enumerate(self._pool.segments.items()):
            if base <= address < base + nbytes:
                return number, address - base
        return None

    def check(self) -> None:
        """Verify the invariants of the state; see ``Allocator.check``."""
        free = {key & ADDRESS_MASK: key >> SIZE_SHIFT for key in self._pool.keys}
        used = {address: chunk for address, chunk in zip(self._addresses, self._chunk_bytes, strict=True) if chunk}
        assert self._pool.keys == sorted(self._pool.keys)
        assert free == self._free.size_at
        assert {address + chunk: address for address, chunk in free.items()} == self._free.start_of
        assert not set(free) & set(used)
        assert sum(used.values()) == self._allocated_bytes
        assert self._requested_bytes <= self._allocated_bytes <= self._region_bytes <= self._limit_bytes
        for base, nbytes in self._pool.segments.items():
            address, was_free = base, False
            while address < base + nbytes:
                is_free = address in free
                assert not (is_free and was_free), "two free neighbours"
                address += free[address] if is_free else used[address]
                was_free = is_free
            assert address == base + nbytes
        assert sum(free.values()) + sum(used.values()) == sum(self._pool.segments.values()) == self._region_bytes

    def _obtain(self, size: int, position: int) -> bool:
        """Make a free chunk of at least ``size`` bytes, if there may be one. Source: ``AllocateRawInternal``."""
        if self._extend(size, position):
            return True
        return self._give_back_free_regions(size) and self._extend(size, position)

    def _extend(self, size: int, position: int) -> bool:
        """Take another region. Source: ``BFCAllocator::Extend``."""
        unit = self.policy.min_chunk_bytes
        available = (self._limit_bytes - self._region_bytes) // unit * unit
        if size > available:
            return False
        was_enough = size <= self._next_region_bytes
        while size > self._next_region_bytes:
            self._next_region_bytes *= 2
        nbytes = min(self._next_region_bytes, available)
        if was_enough:
            self._next_region_bytes *= 2
        self._lowest_address -= nbytes + _REGION_GAP_BYTES
        self._pool.segments[self._lowest_address] = nbytes
        self._pool.insert(self._lowest_address, nbytes)
        self._region_bytes += nbytes
        if self._region_bytes > self._peak_region_bytes:
            self._peak_region_bytes = self._region_bytes
            if self.policy.allow_growth:
                self.peak_reserved_event = position
        return True

    def _give_back_free_regions(self, size: int) -> bool:
        """Give free regions back to the driver, if that can help. Source: ``DeallocateFreeRegions``."""
        if not self.policy.garbage_collection:
            return False
        free = self._pool.whole_segments()
        free_bytes = sum(self._pool.segments[address] for address in free)
        if not free_bytes or size > self._limit_bytes - self._region_bytes + free_bytes:
            return False
        for address in free:
            self._pool.remove(address)
            del self._pool.segments[address]
        self._region_bytes -= free_bytes
        self.num_retries += 1
        return True

    def _rounded(self, nbytes: int) -> int:
        unit = self.policy.min_chunk_bytes
        return max(unit, -(-nbytes // unit) * unit)
