"""MXNet's pool: its three ways to round, its free lists, and when it gives blocks back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.allocators.mxnet_pool import MxnetPool, MxnetPoolPolicy, PoolType
from dnnmem_tune.errors import UsageError
from dnnmem_tune.units import KIB, MIB


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [(1, 4 * KIB), (4097, 8 * KIB), (2 * MIB, 2 * MIB), (2 * MIB + 1, 4 * MIB), (5 * MIB, 6 * MIB)],
)
def test_naive_pool_rounds_to_pages_and_large_requests_to_two_mebibytes(nbytes: int, expected: int) -> None:
    """The default: 4096 bytes up to 2 MiB, multiples of 2 MiB beyond."""
    assert MxnetPoolPolicy().block_bytes(nbytes) == expected


@pytest.mark.parametrize(
    ("nbytes", "expected"), [(1, 4 * KIB), (5000, 8 * KIB), (9 * MIB, 16 * MIB), (17 * MIB, 32 * MIB)]
)
def test_round_pool_rounds_to_powers_of_two_up_to_the_cutoff(nbytes: int, expected: int) -> None:
    """Up to 2**24 bytes powers of two, beyond it multiples of 16 MiB."""
    assert MxnetPoolPolicy(pool_type=PoolType.ROUND).block_bytes(nbytes) == expected


def test_block_is_never_split_nor_given_to_another_size() -> None:
    """A free block of 8 MiB does not serve 6 MiB; one of 6 MiB does."""
    pool = MxnetPool(MxnetPoolPolicy())

    pool.run([0, ~0, 1, ~1, 2], [8 * MIB, 6 * MIB, 5 * MIB])

    pool.check()
    assert pool.stats.reserved_bytes == 14 * MIB
    assert pool.stats.allocated_bytes == 6 * MIB
    assert pool.stats.requested_bytes == 5 * MIB


def test_pool_gives_free_blocks_back_when_the_reserve_would_be_touched() -> None:
    """With 100 MiB and a reserve of 5 % a request that leaves 4 MiB empties the free lists first."""
    pool = MxnetPoolPolicy().make_allocator(100 * MIB, 100 * MIB)

    assert pool.run([0, ~0, 1], [40 * MIB, 56 * MIB]) == 3

    pool.check()
    assert pool.num_retries == 1
    assert pool.stats.reserved_bytes == 56 * MIB


def test_reserve_alone_refuses_nothing() -> None:
    """A job may take the last byte when there is no free block to give back; nothing was retried."""
    pool = MxnetPoolPolicy().make_allocator(100 * MIB, 100 * MIB)

    assert pool.run([0], [100 * MIB]) == 1
    assert pool.num_retries == 0


def test_request_above_the_capacity_is_refused() -> None:
    """The position of the request is returned, and the state is as before it."""
    pool = MxnetPoolPolicy().make_allocator(100 * MIB, 100 * MIB)

    assert pool.run([0, 1], [60 * MIB, 42 * MIB]) == 1

    pool.check()
    assert pool.free_device_bytes == 40 * MIB


def test_unpooled_memory_returns_to_the_driver_at_once() -> None:
    """``Unpooled`` keeps nothing and rounds nothing."""
    pool = MxnetPool(MxnetPoolPolicy(pool_type=PoolType.UNPOOLED))

    pool.run([0, ~0, 1], [3 * MIB, 5])

    pool.check()
    assert pool.stats.reserved_bytes == 5
    assert pool.peak.reserved_bytes == 3 * MIB


@given(
    sizes=st.lists(st.integers(0, 20 * MIB), min_size=1, max_size=12),
    pool_type=st.sampled_from(PoolType),
)
def test_identities_hold_after_every_event(sizes: list[int], pool_type: PoolType) -> None:
    """Requested, allocated, reserved and free bytes add up whatever comes and goes."""
    pool = MxnetPool(MxnetPoolPolicy(pool_type=pool_type), 64 * MIB, 3 * MIB)
    events = [*range(len(sizes)), *(~index for index in range(len(sizes))[::2])]
    position = 0

    while position < len(events):
        position = max(pool.run(events, sizes, position, position + 1), position + 1)
        pool.check()

    assert pool.stats.requested_bytes <= pool.stats.allocated_bytes <= pool.stats.reserved_bytes


def test_environment_variables_configure_the_pool() -> None:
    """Each variable sets its field; sizes may be written with a unit."""
    policy = MxnetPoolPolicy.from_alloc_conf(
        "MXNET_GPU_MEM_POOL_TYPE=Round, MXNET_GPU_MEM_POOL_RESERVE=10 MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE=4MiB"
    )

    assert policy == MxnetPoolPolicy(pool_type=PoolType.ROUND, reserve_percent=10, large_rounding_bytes=4 * MIB)
    assert policy.describe().startswith("MXNet memory pool pool_type=Round reserve_percent=10")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_size_mb:128", "'max_split_size_mb:128' does not configure MXNet's pool; write NAME=VALUE"),
        ("MXNET_GPU_MEM_POOL_TYPE=naive", "MXNET_GPU_MEM_POOL_TYPE is one of Naive, Round, Unpooled, got 'naive'"),
        ("MXNET_GPU_MEM_POOL_RESERVE=100", "MXNET_GPU_MEM_POOL_RESERVE is a percentage below 100, got 100"),
        ("MXNET_GPU_MEM_POOL_PAGE_SIZE=16", "MXNET_GPU_MEM_POOL_PAGE_SIZE is at least 32 bytes, got 16"),
        ("MXNET_GPU_MEM_POOL_ROUND_LINEAR_CUTOFF=8", "lies from 20 to 34, got 8"),
        ("MXNET_GPU_MEM_POOL_RESERVE=much", "MXNET_GPU_MEM_POOL_RESERVE is a whole number, got 'much'"),
    ],
)
def test_impossible_configuration_is_refused(text: str, message: str) -> None:
    """The message names the variable and what was received."""
    with pytest.raises(UsageError, match=re.escape(message)):
        MxnetPoolPolicy.from_alloc_conf(text)
