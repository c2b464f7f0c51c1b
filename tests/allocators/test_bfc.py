"""TensorFlow's allocator: hand-made cases, what holds for every trace, and the real one's decisions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.allocators.bfc import BfcAllocator
from dnnmem_tune.allocators.bfc_policy import BfcPolicy, system_memory_bytes
from dnnmem_tune.allocators.exact import ExactAllocator
from dnnmem_tune.allocators.replay import Completed, OutOfMemory, history, replay
from dnnmem_tune.errors import UsageError
from dnnmem_tune.units import GIB, MIB

RECORDED = Path(__file__).parents[1] / "recorded" / "bfc_allocator_2.21.0.json.gz"
GROWS = BfcPolicy(allow_growth=True)

policies = st.builds(
    BfcPolicy,
    allow_growth=st.booleans(),
    garbage_collection=st.booleans(),
    fragmentation_fraction=st.sampled_from((0.0, 0.01, 0.5)),
)
sizes_in_bytes = st.one_of(st.integers(0, 4096), st.integers(1, 3 * MIB), st.integers(1, 300 * MIB))


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Draw events and sizes."""
    events: list[int] = []
    live: list[int] = []
    sizes = draw(st.lists(sizes_in_bytes, min_size=1, max_size=40))
    for storage in range(len(sizes)):
        events.append(storage)
        live.append(storage)
        for age in draw(st.lists(st.integers(0, 40), max_size=2)):
            if live:
                events.append(~live.pop(age % len(live)))
    return events, sizes


@given(trace=traces(), policy=policies, limit_bytes=st.sampled_from((None, 700 * MIB, 700 * MIB + 100)))
def test_invariants_hold_after_every_event(
    trace: tuple[list[int], list[int]], policy: BfcPolicy, limit_bytes: int | None
) -> None:
    """Chunks tile their regions, free neighbours are merged, and the counters are their sums."""
    events, sizes = trace
    allocator = BfcAllocator(policy, limit_bytes)

    for position in range(len(events)):
        allocator.run(events, sizes, position, position + 1)
        allocator.check()


@given(trace=traces(), policy=policies)
def test_replay_is_the_sum_of_its_events(trace: tuple[list[int], list[int]], policy: BfcPolicy) -> None:
    """Many events in one call and one event a call come to the same peaks."""
    events, sizes = trace
    timeline = replay(events, sizes, BfcAllocator(policy, 2 * GIB))
    stats = history(events, sizes, BfcAllocator(policy, 2 * GIB))

    assert timeline.peak.allocated_bytes == max((entry.allocated_bytes for entry in stats), default=0)
    assert timeline.peak.reserved_bytes == max((entry.reserved_bytes for entry in stats), default=0)
    if timeline.peak_reserved_event >= 0:
        assert stats[timeline.peak_reserved_event].reserved_bytes == timeline.peak.reserved_bytes


@given(trace=traces(), policy=policies)
def test_what_exact_cannot_fit_bfc_cannot(trace: tuple[list[int], list[int]], policy: BfcPolicy) -> None:
    """No allocator serves more bytes than there are."""
    events, sizes = trace
    if replay(events, sizes, BfcAllocator(policy, 700 * MIB)).outcome == Completed():
        assert replay(events, sizes, ExactAllocator(700 * MIB)).outcome == Completed()


@given(trace=traces())
def test_a_job_runs_in_the_memory_that_it_is_said_to_reserve(trace: tuple[list[int], list[int]]) -> None:
    """Without growth, what is reported as reserved is about what the smallest card must have.

    A smaller pool may leave a chunk of the end unsplit that a larger one splits, hence the slack.
    """
    events, sizes = trace
    reserved = replay(events, sizes, BfcAllocator(BfcPolicy(), 64 * GIB)).peak.reserved_bytes

    assert replay(events, sizes, BfcAllocator(BfcPolicy(), reserved + 384 * MIB)).outcome == Completed()


def test_a_chunk_is_split_at_twice_the_request_and_not_below() -> None:
    """GIVEN a free chunk of 1024 bytes THEN 512 bytes are split off, and 768 take all of it."""
    allocator = BfcAllocator(GROWS, GIB)
    sizes = [1024, 256, 768, 512]
    allocator.run([0, 1, ~0, 2], sizes)
    assert allocator.stats.allocated_bytes == 1024 + 256

    allocator.run([~2, 3], sizes)
    assert allocator.stats.allocated_bytes == 512 + 256


def test_a_large_chunk_is_split_at_128_mib_of_slack() -> None:
    """GIVEN a free chunk of 400 MiB THEN 272 MiB are split off it, and 273 MiB take all of it."""
    sizes = [400 * MIB, 256, 273 * MIB, 272 * MIB]
    unsplit, split = BfcAllocator(BfcPolicy(), GIB), BfcAllocator(BfcPolicy(), GIB)

    unsplit.run([0, 1, ~0, 2], sizes)
    split.run([0, 1, ~0, 3], sizes)

    assert unsplit.stats.allocated_bytes == 400 * MIB + 256
    assert split.stats.allocated_bytes == 272 * MIB + 256


def test_regions_double_and_jump_to_what_is_requested() -> None:
    """GIVEN growth THEN regions are 2, 4 and 8 MiB, and a request of 100 MiB takes 128.

    The region after a jump is as large as the last, as ``increased_allocation`` has it.
    """
    allocator = BfcAllocator(GROWS, GIB)
    allocator.run(range(5), [2 * MIB, 3 * MIB, 6 * MIB, 100 * MIB, 120 * MIB])

    assert allocator.regions == (2 * MIB, 4 * MIB, 8 * MIB, 128 * MIB, 128 * MIB)
    assert allocator.stats.reserved_bytes == 270 * MIB


def test_free_regions_are_given_back_for_a_request_that_has_no_room() -> None:
    """GIVEN two free regions of 512 and 256 MiB of 1 GiB THEN 900 MiB are served, unless collection is off."""
    sizes = [300 * MIB, 100 * MIB, 900 * MIB]
    events = [0, 1, ~0, ~1, 2]
    kept = replay(events, sizes, BfcAllocator(BfcPolicy(allow_growth=True, garbage_collection=False), GIB))
    given_back = replay(events, sizes, BfcAllocator(GROWS, GIB))

    assert isinstance(kept.outcome, OutOfMemory)
    assert given_back.outcome == Completed()
    assert given_back.num_retries == 1


def test_the_reserve_follows_the_compute_capability() -> None:
    """TensorFlow 2.21 on 16 GiB cards reports 15884, 15334, 14848 and 14584 MB; on 1500 MiB it takes 1275."""
    limits = [BfcPolicy().reservable_bytes(16 * GIB, 16 * GIB, (major, 0)) >> 20 for major in (6, 7, 8, 9)]

    assert limits == [15884, 15334, 14848, 14584]
    assert 1500 * MIB - system_memory_bytes(1500 * MIB, (7, 0)) == 1275 * MIB


def test_a_share_a_limit_and_a_reserve_replace_the_rule() -> None:
    """Each is an option of TensorFlow's; a limit of a logical device comes first."""
    for text, expected in (
        ("memory_fraction:0.5", 8 * GIB),
        ("memory_limit_mb:1024", GIB),
        ("memory_limit_mb:1024,memory_fraction:0.5", GIB),
        ("system_memory_mb:300", 15 * GIB - 300 * MIB),
    ):
        assert BfcPolicy.from_text(text).reservable_bytes(15 * GIB, 16 * GIB, (7, 0)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_split_size_mb:1",
            "TensorFlow's allocator has no option 'max_split_size_mb'; choose among allow_growth",
        ),
        ("allow_growth", "TensorFlow's allocator: allow_growth cannot be ''"),
        ("memory_fraction:1.5", "memory_fraction is a share of the card above 0, at most 1, got 1.5"),
        ("memory_limit_mb:0", "memory_limit must be above 0 bytes, got 0"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(text: str, message: str) -> None:
    """A misspelt option would silently estimate another job."""
    with pytest.raises(UsageError, match=message):
        BfcPolicy.from_text(text)


@pytest.mark.parametrize("number", range(4))
def test_every_decision_is_that_of_the_real_allocator(number: int) -> None:
    """520 random sequences in four processes of TensorFlow 2.21.0: each chunk lies where it lay there.

    Recorded with ``benchmarks/bfc_recording.py`` from the allocator's own log.
    """
    document = json.loads(gzip.decompress(RECORDED.read_bytes()))
    process = document["processes"][number]
    events, sizes = process["events"], process["sizes"]
    allocator = BfcAllocator(GROWS, process["limit_bytes"])

    for position, code in enumerate(events):
        assert allocator.run(events, sizes, position, position + 1) == position + 1
        if code >= 0:
            assert allocator.place_of(code) == tuple(process["places"][code]), f"event {position}"
    assert list(allocator.regions) == process["regions"]
