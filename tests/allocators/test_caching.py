"""The caching allocator's rules, one by one, on cases small enough to work out by hand."""

from __future__ import annotations

from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.policy import CachingPolicy, TieBreak
from dnnmem_tune.units import GIB, MIB


def place(allocator: CachingAllocator, storage: int) -> tuple[int, int]:
    """Return a storage's segment and its offset there."""
    found = allocator.place_of(storage)
    assert found is not None
    segment, address = found
    return segment, address - segment


def test_small_requests_share_a_segment() -> None:
    """Two tensors of 1000 bytes take neighbouring blocks of one 2 MiB segment."""
    allocator = CachingAllocator()

    allocator.run([0, 1], [1000, 1000])

    assert place(allocator, 0)[0] == place(allocator, 1)[0]
    assert [place(allocator, storage)[1] for storage in (0, 1)] == [0, 1024]
    assert allocator.stats.allocated_bytes == 2048
    assert allocator.stats.reserved_bytes == 2 * MIB


def test_large_block_keeps_a_remainder_of_one_mebibyte() -> None:
    """11 MiB from a 12 MiB segment leave 1 MiB, which is not *more* than 1 MiB: no split."""
    allocator = CachingAllocator()

    allocator.run([0], [11 * MIB])

    assert allocator.stats.allocated_bytes == 12 * MIB


def test_large_block_is_split_when_more_than_one_mebibyte_remains() -> None:
    """5 MiB from a 20 MiB segment leave 15 MiB, which serve the next request."""
    allocator = CachingAllocator()

    allocator.run([0, 1], [5 * MIB, 15 * MIB])

    assert allocator.stats.allocated_bytes == allocator.stats.reserved_bytes == 20 * MIB


def test_best_fit_takes_the_smallest_block_that_serves() -> None:
    """Of free 30 and 24 MiB the request for 23 MiB takes the 24."""
    allocator = CachingAllocator()
    sizes = [30 * MIB, 24 * MIB, 23 * MIB]
    allocator.run([0, 1], sizes)
    expected = allocator.place_of(1)

    allocator.run([~0, ~1, 2], sizes)

    assert allocator.place_of(2) == expected
    assert allocator.stats.allocated_bytes == 24 * MIB


def test_freed_neighbours_merge_into_the_whole_segment() -> None:
    """Three blocks of a segment, freed in any order, serve one request for all of it."""
    sizes = [4 * MIB, 6 * MIB, 10 * MIB, 20 * MIB]
    for order in ([~0, ~1, ~2], [~2, ~0, ~1], [~1, ~0, ~2]):
        allocator = CachingAllocator()

        allocator.run([0, 1, 2, *order, 3], sizes)

        assert allocator.stats.reserved_bytes == 20 * MIB


def test_ties_go_to_the_oldest_segment() -> None:
    """PyTorch 2.13 and later: of equal free blocks that of the oldest segment."""
    allocator = CachingAllocator(CachingPolicy(tie_break=TieBreak.OLDEST_SEGMENT))
    sizes = [20 * MIB] * 3
    allocator.run([0, 1], sizes)
    expected = allocator.place_of(0)

    allocator.run([~0, ~1, 2], sizes)

    assert allocator.place_of(2) == expected


def test_ties_go_to_the_lowest_address_in_older_releases() -> None:
    """PyTorch up to 2.11: by address, and new segments lie below the older ones."""
    allocator = CachingAllocator(CachingPolicy(tie_break=TieBreak.LOWEST_ADDRESS))
    sizes = [20 * MIB] * 3
    allocator.run([0, 1], sizes)
    expected = allocator.place_of(1)

    allocator.run([~0, ~1, 2], sizes)

    assert allocator.place_of(2) == expected


def test_cache_is_released_before_giving_up() -> None:
    """40 MiB cached of 60: a request for 50 MiB needs them back, and one retry."""
    allocator = CachingAllocator(capacity_bytes=60 * MIB)

    done = allocator.run([0, ~0, 1], [40 * MIB, 50 * MIB])

    assert done == 3
    assert allocator.num_retries == 1
    assert allocator.stats.reserved_bytes == allocator.peak.reserved_bytes == 50 * MIB


def test_a_split_segment_cannot_be_released() -> None:
    """5 of 20 MiB in use keep the segment: 45 MiB do not fit in 60 though only 5 are allocated."""
    allocator = CachingAllocator(capacity_bytes=60 * MIB)

    done = allocator.run([0, 1], [5 * MIB, 45 * MIB])

    assert done == 1
    assert allocator.free_device_bytes == 40 * MIB


def test_a_failed_request_leaves_the_counters() -> None:
    """After out of memory the run can go on: the failed storage's free does nothing."""
    allocator = CachingAllocator(capacity_bytes=60 * MIB)
    events, sizes = [0, 1, ~1, 2], [5 * MIB, 90 * MIB, 6 * MIB]

    stopped = allocator.run(events, sizes)
    done = allocator.run(events, sizes, stopped + 1)

    assert (stopped, done) == (1, 4)
    assert allocator.stats.allocated_bytes == 11 * MIB
    allocator.check()


def test_driver_takes_whole_pages() -> None:
    """A segment of 25 MiB holds two blocks of 9 MiB and takes 26 MiB off the card: two fit in 52, not in 51."""
    policy = CachingPolicy(large_segment_bytes=25 * MIB)
    sizes = [9 * MIB] * 3

    assert CachingAllocator(policy, 52 * MIB).run([0, 1, 2], sizes) == 3
    assert CachingAllocator(policy, 51 * MIB).run([0, 1, 2], sizes) == 2


def test_memory_fraction_is_of_the_total() -> None:
    """Half of 100 MiB may be reserved although 90 are free on the card."""
    allocator = CachingAllocator(
        CachingPolicy(memory_fraction=0.5), capacity_bytes=90 * MIB, total_bytes=100 * MIB
    )

    done = allocator.run([0, 1], [50 * MIB, 512])

    assert done == 1


def test_blocks_above_the_split_limit_stay_whole() -> None:
    """A free block of 70 MiB serves no request for 10 MiB when blocks from 64 MiB on are not split."""
    allocator = CachingAllocator(CachingPolicy(max_split_bytes=64 * MIB))

    allocator.run([0, ~0, 1], [70 * MIB, 10 * MIB])

    assert allocator.stats.reserved_bytes == 80 * MIB


def test_unsplittable_blocks_serve_what_is_nearly_as_large() -> None:
    """A free block of 90 MiB serves 80 MiB, not 64 MiB: at most 20 MiB may be lost."""
    sizes = [90 * MIB, 80 * MIB, 64 * MIB]

    near, far = (CachingAllocator(CachingPolicy(max_split_bytes=64 * MIB)) for _ in range(2))
    near.run([0, ~0, 1], sizes)
    far.run([0, ~0, 2], sizes)

    assert near.stats.reserved_bytes == near.stats.allocated_bytes == 90 * MIB
    assert far.stats.reserved_bytes == 154 * MIB


def test_unsplittable_blocks_are_released_first() -> None:
    """100 MiB cached, too large for 75, make room without a retry, and the other cache stays."""
    policy = CachingPolicy(max_split_bytes=64 * MIB)
    allocator = CachingAllocator(policy, capacity_bytes=200 * MIB)

    done = allocator.run([0, 1, ~0, ~1, 2], [100 * MIB, 60 * MIB, 75 * MIB])

    assert done == 5
    assert allocator.num_retries == 0
    assert allocator.stats.reserved_bytes == (60 + 76) * MIB


def test_garbage_collection_releases_the_longest_idle() -> None:
    """Above 60 % of the allowed memory, idle segments of at least average age go until below."""
    policy = CachingPolicy(memory_fraction=1.0, collection_threshold=0.6)
    allocator = CachingAllocator(policy, capacity_bytes=250 * MIB)
    sizes = [50 * MIB, 60 * MIB, 80 * MIB, 70 * MIB]

    # GIVEN 190 MiB reserved, 40 above the threshold: 50 idle for two searches, 60 for one.
    allocator.run([0, 1, ~0, 2, ~1], sizes)
    # WHEN 70 MiB are needed, THEN the 50 MiB go, but not the 60.
    allocator.run([3], sizes)

    assert allocator.stats.reserved_bytes == (60 + 80 + 70) * MIB
    assert allocator.num_retries == 0


def test_garbage_collection_needs_a_fraction() -> None:
    """Without ``per_process_memory_fraction`` the threshold alone does nothing, as recorded."""
    sizes = [50 * MIB, 60 * MIB]

    allocator = CachingAllocator(CachingPolicy(collection_threshold=0.1), capacity_bytes=200 * MIB)
    allocator.run([0, ~0, 1], sizes)

    assert allocator.stats.reserved_bytes == 110 * MIB


def test_expandable_segment_grows_by_pages() -> None:
    """30 MiB take two pages of 20 MiB; 10 MiB more fit in their rest; the next 1.5 MiB map a third."""
    allocator = CachingAllocator(CachingPolicy(expandable_segments=True), capacity_bytes=GIB)
    sizes = [30 * MIB, 10 * MIB, 3 * MIB // 2]

    reserved = []
    for position in range(3):
        allocator.run([0, 1, 2], sizes, position, position + 1)
        reserved.append(allocator.stats.reserved_bytes)

    assert reserved == [40 * MIB, 40 * MIB, 60 * MIB]
    assert allocator.stats.allocated_bytes == sum(sizes)


def test_expandable_segment_returns_whole_free_pages() -> None:
    """Of 30 + 30 MiB the first, freed, gives one page back; the page it shares stays."""
    allocator = CachingAllocator(CachingPolicy(expandable_segments=True), capacity_bytes=GIB)
    allocator.run([0, 1, ~0], [30 * MIB, 30 * MIB])

    allocator.empty_cache()

    assert allocator.stats.reserved_bytes == 40 * MIB
    allocator.check()


def test_expandable_segment_avoids_what_whole_segments_lose() -> None:
    """5 then 45 MiB fit in 60 MiB, which whole segments of 20 and 46 MiB do not."""
    allocator = CachingAllocator(CachingPolicy(expandable_segments=True), capacity_bytes=60 * MIB)

    assert allocator.run([0, 1], [5 * MIB, 45 * MIB]) == 2


def test_check_notices_a_lost_block() -> None:
    """The check of invariants is no formality: a block that vanishes is reported."""
    allocator = CachingAllocator()
    allocator.run([0, 1, ~0], [1000, 1000])
    allocator._small.remove(next(iter(allocator._free.size_at)))

    try:
        allocator.check()
    except AssertionError as error:
        assert "blocks start at" in str(error)  # noqa: PT017  pytest.raises would swallow the check's own asserts
    else:
        raise RuntimeError("check() passed over a missing block")
