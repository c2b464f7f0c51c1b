"""How sizes become blocks and segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.allocators.policy import CachingPolicy, TieBreak
from dnnmem_tune.units import GIB, MIB

DEFAULT = CachingPolicy()


@given(nbytes=st.integers(1, 1 << 40))
def test_block_is_the_tightest_aligned_cover(nbytes: int) -> None:
    """A block covers its request, is aligned, and wastes less than one unit."""
    block = DEFAULT.round_size(nbytes)

    assert block % 512 == 0
    assert 0 <= block - nbytes < 512


@given(nbytes=st.integers(1, 1 << 40), divisions=st.sampled_from((2, 4, 8, 16)))
def test_divided_block_wastes_less_than_one_step(nbytes: int, divisions: int) -> None:
    """With N steps between two powers of two a block is at most 1/N larger, or one unit."""
    block = CachingPolicy(roundup_divisions=(divisions,) * 16).round_size(nbytes)

    assert block % 512 == 0
    assert 0 <= block - nbytes < max(512, nbytes / divisions)


@pytest.mark.parametrize(
    ("mebibytes", "expected"),
    [(1.5, 1.5), (1.51, 1.75), (16.1, 18), (33, 33), (130, 130), (257, 320), (600, 768), (70000, 98304)],
)
def test_divisions_are_those_of_the_interval(mebibytes: float, expected: float) -> None:
    """8 steps up to 32 MiB, none up to 256 MiB, then 4, and 2 from 512 MiB on, whatever the size."""
    policy = CachingPolicy(roundup_divisions=(4, *(8,) * 4, *(0,) * 3, 4, *(2,) * 7))

    assert policy.round_size(int(mebibytes * MIB)) == pytest.approx(expected * MIB, abs=512)


@pytest.mark.parametrize(
    ("block_bytes", "expected"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (3 * GIB, 3 * GIB),
    ],
)
def test_segment_size_by_block_size(block_bytes: int, expected: int) -> None:
    """The three ranges of ``get_allocation_size`` and their borders."""
    assert DEFAULT.segment_size(block_bytes) == expected


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("2.6.0+cu124", TieBreak.LOWEST_ADDRESS),
        ("2.11.0", TieBreak.LOWEST_ADDRESS),
        ("2.13.0+cpu", TieBreak.OLDEST_SEGMENT),
        ("3.0.0a0+git123", TieBreak.OLDEST_SEGMENT),
    ],
)
def test_the_rule_for_ties_changed_after_2_11(release: str, expected: TieBreak) -> None:
    """As the comparators in the libraries of 2.11.0 and 2.13.0 show."""
    assert TieBreak.of_pytorch(release) is expected
