"""What holds for every trace and every policy."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dnnmem_tune.allocators.base import Allocator
from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.exact import ExactAllocator
from dnnmem_tune.allocators.policy import CachingPolicy
from dnnmem_tune.allocators.replay import Completed, history, replay
from dnnmem_tune.units import GIB, MIB

sizes_in_bytes = st.one_of(
    st.integers(0, 4096),
    st.integers(1, 3 * MIB),
    st.integers(1, 60 * MIB),
    st.sampled_from((MIB, 10 * MIB, 20 * MIB)),
)

policies = st.builds(
    CachingPolicy,
    expandable_segments=st.booleans(),
    large_segment_bytes=st.sampled_from((12 * MIB, 20 * MIB, 45 * MIB)),
    max_split_bytes=st.sampled_from((None, 45 * MIB, 50 * MIB)),
    memory_fraction=st.sampled_from((None, 0.4, 0.9)),
    collection_threshold=st.sampled_from((None, 0.3, 0.8)),
    roundup_divisions=st.sampled_from(((), (4,) * 16)),
)


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Draw events and sizes."""
    events: list[int] = []
    live: list[int] = []
    sizes = draw(st.lists(sizes_in_bytes, min_size=1, max_size=40))
    # For each storage, how many are freed after it, and how old those are.
    frees = draw(st.lists(st.lists(st.integers(0, 40), max_size=2), min_size=len(sizes), max_size=len(sizes)))
    for storage, ages in enumerate(frees):
        events.append(storage)
        live.append(storage)
        events += [~live.pop(age % len(live)) for age in ages if live]
    return events, sizes


@given(trace=traces(), policy=policies, capacity_bytes=st.sampled_from((None, 300 * MIB)))
def test_invariants_hold_after_every_event(
    trace: tuple[list[int], list[int]], policy: CachingPolicy, capacity_bytes: int | None
) -> None:
    """Blocks tile their segments, free neighbours are merged, and the counters are their sums."""
    events, sizes = trace
    allocator = CachingAllocator(policy, capacity_bytes)

    for position in range(len(events)):
        allocator.run(events, sizes, position, position + 1)
        allocator.check()


@given(trace=traces(), policy=policies)
def test_exact_is_never_above_caching(trace: tuple[list[int], list[int]], policy: CachingPolicy) -> None:
    """Requested is what exact reserves; rounding and caching only add."""
    events, sizes = trace

    exact = replay(events, sizes, ExactAllocator())
    caching = replay(events, sizes, CachingAllocator(policy))

    if caching.outcome == Completed():
        assert exact.peak.reserved_bytes == caching.peak.requested_bytes
        assert caching.peak.requested_bytes <= caching.peak.allocated_bytes <= caching.peak.reserved_bytes


@given(trace=traces(), policy=policies, capacity_bytes=st.integers(40, 400).map(lambda n: n * MIB))
def test_what_exact_cannot_fit_caching_cannot(
    trace: tuple[list[int], list[int]], policy: CachingPolicy, capacity_bytes: int
) -> None:
    """Out of memory under exact rejects a batch for good."""
    events, sizes = trace

    exact = replay(events, sizes, ExactAllocator(capacity_bytes))
    caching = replay(events, sizes, CachingAllocator(policy, capacity_bytes))

    if caching.outcome == Completed():
        assert exact.outcome == Completed()


@given(trace=traces(), policy=policies, capacity_bytes=st.sampled_from((None, 300 * MIB)))
def test_replay_is_the_sum_of_its_events(
    trace: tuple[list[int], list[int]], policy: CachingPolicy, capacity_bytes: int | None
) -> None:
    """Many events in one call and one event a call come to the same peaks and the same state."""
    events, sizes = trace
    at_once, one_by_one = (CachingAllocator(policy, capacity_bytes) for _ in range(2))

    timeline = replay(events, sizes, at_once)
    stats = history(events, sizes, one_by_one)

    assert timeline.peak.allocated_bytes == max((entry.allocated_bytes for entry in stats), default=0)
    assert timeline.final == one_by_one.stats
    assert at_once.segments() == one_by_one.segments()


@given(
    sizes=st.lists(sizes_in_bytes, min_size=2, max_size=12),
    policy=policies.filter(lambda policy: policy.collection_threshold is None),
    data=st.data(),
)
def test_order_within_a_run_of_frees_does_not_matter(
    sizes: list[int], policy: CachingPolicy, data: st.DataObject
) -> None:
    """A trace may sort such runs: the allocator's state afterwards is the same."""
    allocations = list(range(len(sizes)))
    freed = [~storage for storage in data.draw(st.lists(st.sampled_from(allocations), unique=True))]
    shuffled = data.draw(st.permutations(freed))

    first, second = (CachingAllocator(policy) for _ in range(2))
    first.run(allocations + freed, sizes)
    second.run(allocations + shuffled, sizes)

    assert first.segments() == second.segments()
    assert first.stats == second.stats


@given(trace=traces(), policy=policies)
def test_unlimited_memory_never_runs_out(trace: tuple[list[int], list[int]], policy: CachingPolicy) -> None:
    """Without a capacity and a fraction every request is served and the cache never released."""
    events, sizes = trace
    if policy.memory_fraction is not None:
        return

    timeline = replay(events, sizes, CachingAllocator(policy))

    assert timeline.outcome == Completed()
    assert timeline.num_retries == 0


class AllocatorMachine(RuleBasedStateMachine):
    """Any sequence of allocations, frees and, where there is one, emptying of the cache."""

    def __init__(self, allocator: Allocator) -> None:
        super().__init__()
        self.allocator = allocator
        self.sizes: list[int] = []
        self.live: list[int] = []

    @rule(nbytes=sizes_in_bytes)
    def allocate(self, nbytes: int) -> None:
        """Request a block; it counts only if it is served."""
        storage = len(self.sizes)
        self.sizes.append(nbytes)
        if self.allocator.run([storage], self.sizes):
            self.live.append(storage)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        """Give any block back, which always works."""
        storage = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        assert self.allocator.run([~storage], self.sizes) == 1

    @rule()
    def empty_cache(self) -> None:
        """Give the cache back, where there is one."""
        if isinstance(self.allocator, CachingAllocator):
            self.allocator.empty_cache()

    @invariant()
    def is_consistent(self) -> None:
        """The state is sound, and the counters are in order."""
        self.allocator.check()
        stats, peak = self.allocator.stats, self.allocator.peak
        assert stats.requested_bytes == sum(self.sizes[storage] for storage in self.live)
        assert stats.requested_bytes <= stats.allocated_bytes <= stats.reserved_bytes
        assert stats.allocated_bytes <= peak.allocated_bytes
        assert stats.reserved_bytes <= peak.reserved_bytes


MACHINES: dict[str, Callable[[], Allocator]] = {
    "exact": lambda: ExactAllocator(400 * MIB),
    "default": lambda: CachingAllocator(capacity_bytes=300 * MIB),
    "expandable": lambda: CachingAllocator(CachingPolicy(expandable_segments=True), 300 * MIB, GIB),
    "max split": lambda: CachingAllocator(CachingPolicy(max_split_bytes=30 * MIB), 300 * MIB),
    "collected": lambda: CachingAllocator(CachingPolicy(memory_fraction=0.9, collection_threshold=0.4), 300 * MIB),
}


@pytest.mark.parametrize("name", MACHINES)
def test_any_sequence_keeps_the_allocator_consistent(name: str) -> None:
    """Drives each allocator through random sequences and checks it after each step."""
    run_state_machine_as_test(
        lambda: AllocatorMachine(MACHINES[name]()),  # type: ignore[arg-type]  # any factory will do
        settings=settings(max_examples=30, stateful_step_count=40, deadline=None),
    )


def test_peak_requested_is_the_largest_prefix_sum() -> None:
    """By a second, simpler method: the running sum of signed sizes."""
    events, sizes = [0, 1, ~0, 2, ~1, 3, ~2, ~3], [7000, 3 * MIB, 50, 2 * MIB]
    running = itertools.accumulate(sizes[code] if code >= 0 else -sizes[~code] for code in events)

    assert replay(events, sizes, CachingAllocator()).peak.requested_bytes == max(running)
