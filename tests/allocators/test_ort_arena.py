"""ONNX Runtime's arena: how it splits, joins and grows, and what it never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.allocators.ort_arena import OrtArena, OrtArenaPolicy
from dnnmem_tune.errors import UsageError
from dnnmem_tune.units import GIB, MIB

UNRESERVED = OrtArenaPolicy(num_reserved=0)


def test_regions_double_from_one_mebibyte() -> None:
    """1, 2, 4 MiB: each request fills the region before it."""
    arena = OrtArena(UNRESERVED)

    arena.run([0, 1, 2], [MIB, 2 * MIB, 4 * MIB])

    assert arena.stats.reserved_bytes == 7 * MIB


def test_a_chunk_is_split_when_it_is_twice_as_large() -> None:
    """4 MiB for 3: the rest stays with it, and the next request needs a region of its own."""
    arena = OrtArena(UNRESERVED)

    arena.run([0, 1], [3 * MIB, 256])

    assert arena.stats.allocated_bytes == 4 * MIB + 256
    assert arena.stats.reserved_bytes == 8 * MIB


def test_regions_stop_to_double_at_a_gibibyte() -> None:
    """``max_power_of_two_extend_bytes``; a larger request still gets what it needs."""
    arena = OrtArena(UNRESERVED)

    arena.run([0, 1, 2], [GIB, GIB, GIB])

    assert arena.stats.reserved_bytes == 3 * GIB


def test_growing_as_requested_takes_no_more() -> None:
    """The second strategy, rounded to 256 bytes."""
    arena = OrtArena(OrtArenaPolicy(extend_strategy="kSameAsRequested", num_reserved=0))

    arena.run([0, 1], [3 * MIB + 1, 100])

    assert arena.stats.reserved_bytes == 3 * MIB + 256 + 256


def test_weights_lie_outside_the_regions_and_count_towards_the_limit() -> None:
    """``Reserve``: exactly as large as they are."""
    arena = OrtArena(OrtArenaPolicy(memory_limit_bytes=10 * MIB), capacity_bytes=GIB)

    assert arena.run([0, 1], [6 * MIB + 1, 3 * MIB]) == 2
    assert arena.stats.reserved_bytes == 6 * MIB + 1 + (4 * MIB - 256)
    assert arena.run([2], [0, 0, MIB]) == 0


def test_what_the_card_cannot_give_is_tried_in_smaller_steps() -> None:
    """Four fifths of the doubled region are left on the card: a tenth less is asked for, and again."""
    arena = OrtArena(OrtArenaPolicy(num_reserved=0, memory_limit_bytes=GIB), capacity_bytes=16 * MIB)

    assert arena.run([0, 1], [5 * MIB, 6 * MIB]) == 2
    assert arena.stats.reserved_bytes <= 16 * MIB


def test_a_request_beyond_the_card_is_not_served() -> None:
    """The number of its event is returned."""
    assert OrtArena(UNRESERVED, capacity_bytes=8 * MIB).run([0, 1], [MIB, 8 * MIB]) == 1


@given(
    sizes=st.lists(st.integers(0, 6 * MIB), min_size=1, max_size=40),
    choices=st.lists(st.integers(0, 1 << 30), max_size=80),
    strategy=st.sampled_from(["kNextPowerOfTwo", "kSameAsRequested"]),
)
def test_the_state_is_consistent_after_every_event(sizes: list[int], choices: list[int], strategy: str) -> None:
    """Chunks tile their regions, neighbours that are free are one, and the sums are right."""
    arena = OrtArena(OrtArenaPolicy.from_text(f"arena_extend_strategy:{strategy}"), capacity_bytes=64 * MIB)
    waiting, live = list(range(len(sizes))), list[int]()
    for choice in choices:
        if waiting and (choice % 2 or not live):
            code = waiting.pop(0)
            if arena.run([code], sizes):
                live.append(code)
        elif live:
            arena.run([~live.pop(choice % len(live))], sizes)
        arena.check()
        stats = arena.stats
        assert stats.requested_bytes == sum(sizes[code] for code in live)
        assert stats.requested_bytes <= stats.allocated_bytes <= stats.reserved_bytes <= 64 * MIB
    arena.run([~code for code in live], sizes)
    arena.check()
    assert arena.stats.allocated_bytes == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "growth:fast",
            "'growth:fast' is no option of ONNX Runtime's arena; write name:value with one of arena_ext",
        ),
        (
            "arena_extend_strategy:kTwice",
            "arena_extend_strategy is kNextPowerOfTwo or kSameAsRequested, got 'kTwice'",
        ),
        ("gpu_mem_limit:0", "gpu_mem_limit must be above 0 bytes, got 0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(text: str, message: str) -> None:
    """By the names that ONNX Runtime gives them."""
    with pytest.raises(UsageError) as caught:
        OrtArenaPolicy.from_text(text)

    assert str(caught.value).startswith(message)


def test_a_report_names_what_is_not_the_default() -> None:
    """So that it can be repeated."""
    policy = OrtArenaPolicy.from_text("gpu_mem_limit:2GiB")

    assert policy.describe() == "ONNX Runtime arena gpu_mem_limit=2147483648"
    assert policy.reservable_bytes(16 * GIB, 16 * GIB, (8, 0)) == 2 * GIB
