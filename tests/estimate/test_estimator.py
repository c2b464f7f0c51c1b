"""Estimates of small hand-made jobs, and what holds for every job."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.policy import CachingPolicy, TieBreak
from dnnmem_tune.allocators.replay import Completed, OutOfMemory
from dnnmem_tune.errors import UsageError
from dnnmem_tune.estimate.devices import DeviceProfile
from dnnmem_tune.estimate.estimator import Estimator
from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.ir.trace import Category, Coverage, Mark, MemoryTrace, Operation, Phase, Storage
from dnnmem_tune.operators.convolution import Direction, convolution_scratch
from dnnmem_tune.units import GIB, MIB

CARD = DeviceProfile(
    name="card",
    total_bytes=1100 * MIB,
    context_bytes=100 * MIB,
    context_uncertainty_bytes=20 * MIB,
    compute_capability=(8, 0),
    num_sms=108,
    threads_per_sm=2048,
    source="made up",
)


def job(
    sizes: Sequence[Polynomial | Scratch],
    events: Sequence[int],
    *,
    categories: Sequence[Category] | None = None,
    names: Sequence[str] | None = None,
    optional: Sequence[int] = (),
    coverage: Coverage | None = None,
    marks: Sequence[Mark] = (),
) -> MemoryTrace:
    """Return a trace in which each storage has an operation of its own."""
    trace = MemoryTrace(
        storages=tuple(
            Storage(size, categories[index] if categories else Category.ACTIVATION, index, index in optional)
            for index, size in enumerate(sizes)
        ),
        operations=tuple(
            Operation(names[index] if names else f"op{index}", f"layer{index % 2}", Phase.FORWARD, 0)
            for index in range(len(sizes))
        ),
        events=tuple(events),
        coverage=coverage or Coverage(),
        marks=tuple(marks),
        framework="torch 2.13.0",
        recorder="by hand",
        batch_sizes=(5, 8),
    )
    trace.check()
    return trace


@st.composite
def jobs(draw: st.DrawFn) -> MemoryTrace:
    """Jobs of up to 30 storages, some of them optional, freed in any order or not at all."""
    num_storages = draw(st.integers(1, 30))
    sizes = [
        Polynomial(draw(st.integers(0, 40 * MIB)), draw(st.integers(0, 4 * MIB))) for _ in range(num_storages)
    ]
    events: list[int] = []
    live: list[int] = []
    for index in range(num_storages):
        events.append(index)
        live.append(index)
        while live:
            is_done: bool = draw(st.booleans())
            if is_done:
                break
            events.append(~live.pop(draw(st.integers(0, len(live) - 1))))
    optional: set[int] = draw(st.sets(st.integers(0, num_storages - 1), max_size=3))
    categories = [draw(st.sampled_from(list(Category))) for _ in range(num_storages)]
    return job(sizes, events, categories=categories, optional=tuple(optional))


# Hand-computed jobs.

TWO_STORAGES = job(
    [Polynomial(30 * MIB), Polynomial(0, MIB + 100)],
    [0, 1, ~1],
    categories=[Category.WEIGHT, Category.ACTIVATION],
)


def test_peaks_follow_from_rounding_and_segments() -> None:
    """30 MiB has its own segment; 16 x (1 MiB + 100 B) is rounded to blocks of 512 B and segments of 2 MiB."""
    estimate = Estimator(TWO_STORAGES, CARD).at(16)

    assert estimate.peak_requested_bytes == 30 * MIB + 16 * MIB + 1600
    assert estimate.peak_allocated_bytes == 30 * MIB + 16 * MIB + 2048
    assert estimate.peak_reserved_bytes == 30 * MIB + 18 * MIB
    assert estimate.peak_device_bytes == 148 * MIB
    assert estimate.limit_bytes == 1100 * MIB
    assert estimate.headroom_bytes == 952 * MIB


def test_the_verdict_is_exact_at_the_capacity() -> None:
    """1000 MiB are usable: 30 MiB of weights leave 970 MiB, that is 969 batches of 1 MiB + 100 B."""
    estimator = Estimator(TWO_STORAGES, CARD)

    assert estimator.at(969).fits is True
    assert estimator.at(970).fits is False


def test_a_job_that_fails_reports_what_it_would_need() -> None:
    """The peak of a job that is cut off at the limit would say nothing about how far it is off."""
    estimate = Estimator(TWO_STORAGES, CARD).at(2000)

    assert isinstance(estimate.outcome, OutOfMemory)
    assert estimate.verdict_reason == "out of memory at op1 in 'layer1', step 0"
    assert estimate.peak_requested_bytes == 30 * MIB + 2000 * (MIB + 100)
    assert estimate.headroom_bytes < 0


def test_a_job_runs_that_needs_its_cache_back() -> None:
    """600 MiB freed are cached; 700 MiB more fit only since the allocator gives the cache back."""
    trace = job([Polynomial(600 * MIB), Polynomial(700 * MIB)], [0, ~0, 1])

    estimate = Estimator(trace, CARD).at(1)

    assert estimate.fits is True
    assert estimate.num_retries == 1
    assert estimate.peak_reserved_bytes == 700 * MIB


def test_a_batch_beyond_any_card_is_answered_and_not_wrapped_around() -> None:
    """10^12 samples overflow 64-bit sizes; the answer is that it does not fit, with the true number."""
    estimate = Estimator(TWO_STORAGES, CARD).at(10**12)

    assert estimate.fits is False
    assert estimate.peak_requested_bytes == 30 * MIB + 10**12 * (MIB + 100)
    assert Estimator(TWO_STORAGES, CARD).lower_bound(10**13) == 30 * MIB + 10**13 * (MIB + 100)


def test_an_optional_workspace_without_room_is_skipped() -> None:
    """PyTorch takes another algorithm, so a workspace alone never decides that a job fails."""
    trace = job([Polynomial(900 * MIB), Polynomial(500 * MIB)], [0, 1, ~1], optional=[1])

    estimate = Estimator(trace, CARD).at(1)

    assert estimate.fits is True
    assert estimate.num_skipped_workspaces == 1
    assert estimate.peak_reserved_bytes == 900 * MIB
    assert estimate.breakdown().requested_bytes == 900 * MIB


def test_other_processes_and_margins_lower_the_limit() -> None:
    """What others hold, and what is to stay free, is not there for the job."""
    device = replace(CARD, occupied_bytes=200 * MIB)

    estimator = Estimator(TWO_STORAGES, device, safety_bytes=50 * MIB, safety_fraction=0.1, extra_bytes=40 * MIB)

    assert estimator.limit_bytes == (1100 - 200 - 50 - 110) * MIB
    assert estimator.capacity_bytes == estimator.limit_bytes - 140 * MIB
    assert estimator.at(1).peak_device_bytes == (30 + 20 + 140) * MIB


def test_a_share_of_the_card_is_a_limit() -> None:
    """``set_per_process_memory_fraction`` counts the card's total, and not the context."""
    estimator = Estimator(TWO_STORAGES, CARD, policy=CachingPolicy(memory_fraction=0.5))

    assert estimator.limit_bytes == 650 * MIB
    assert estimator.at(519).fits is True
    assert estimator.at(521).fits is False
    assert estimator.at(521).peak_reserved_bytes == 552 * MIB


# What is not known.


def test_a_job_with_an_operator_without_rule_is_not_said_to_fit() -> None:
    """Its kernel may take more than its outputs; the caller may choose to count just those."""
    trace = replace(TWO_STORAGES, coverage=Coverage(unknown_operators={"my::op": 3}))

    assert Estimator(trace, CARD).at(8).fits is None
    assert (
        Estimator(trace, CARD).at(8).verdict_reason == "what is known fits, but there is no memory rule for my::op"
    )
    assert Estimator(trace, CARD, unknown_operators="count").at(8).fits is True


def test_unknown_operators_do_not_hide_that_a_job_fails() -> None:
    """More memory cannot make it fit."""
    trace = replace(TWO_STORAGES, coverage=Coverage(unknown_operators={"my::op": 3}))

    assert Estimator(trace, CARD).at(2000).fits is False


def test_a_job_that_fails_only_by_a_bound_is_unknown() -> None:
    """``nonzero`` is bounded by the number of elements; a real run may select few."""
    coverage = Coverage(bounded={"aten::nonzero": 1})
    trace = job(
        [Polynomial(100 * MIB), Polynomial(0, 10 * MIB)],
        [0, 1],
        names=["aten::empty", "aten::nonzero"],
        coverage=coverage,
    )
    estimator = Estimator(trace, CARD)

    assert estimator.at(50).fits is True
    assert estimator.at(200).fits is None
    assert estimator.at(200).verdict_reason == (
        "out of memory at aten::nonzero in 'layer1', step 0, but only if aten::nonzero give as many elements "
        "as they can at most"
    )
    reasons = {reason.cause: reason for reason in estimator.at(50).interval().reasons}
    assert reasons["sizes that depend on values"].below_bytes == 500 * MIB


def test_the_interval_names_the_context_and_the_workspace() -> None:
    """The workspace model ``none`` may be short by what ``limited`` takes; both causes add up."""
    scratch = convolution_scratch(
        Direction.FILTER_GRADIENT,
        input_shape=(8, 64, 56, 56),
        weight_shape=(64, 64, 3, 3),
        output_shape=(8, 64, 56, 56),
        stride=(1, 1),
        groups=1,
        dtype="float32",
        itemsize=4,
    )
    trace = job([Polynomial(30 * MIB), scratch], [0, 1, ~1], optional=[1])

    estimate = Estimator(trace, CARD).at(8)
    interval = estimate.interval()

    workspace_bytes = 36 * 4 * (8 * 14 * 14 * 128 + 64 * 64)
    assert [reason.cause for reason in interval.reasons] == ["context", "convolution workspace"]
    assert interval.low_bytes == estimate.peak_device_bytes - 20 * MIB
    rounded_bytes = -(-workspace_bytes // (2 * MIB)) * 2 * MIB
    assert interval.high_bytes == estimate.peak_device_bytes + 20 * MIB + rounded_bytes
    assert (
        Estimator(trace, CARD, conv_workspace="limited").at(8).peak_requested_bytes == 30 * MIB + workspace_bytes
    )


# Breakdown and steps.


def test_the_breakdown_says_what_is_live_at_the_peak_and_where() -> None:
    """At the peak the weights and the second activation are live; the first is only cached."""
    trace = job(
        [Polynomial(30 * MIB), Polynomial(20 * MIB), Polynomial(0, 10 * MIB), Polynomial(MIB)],
        [0, 1, ~1, 2, ~2, 3],
        categories=[Category.WEIGHT, Category.ACTIVATION, Category.ACTIVATION, Category.TEMPORARY],
    )

    breakdown = Estimator(trace, CARD).at(6).breakdown()

    assert breakdown.event == 3
    assert breakdown.operation == "op2"
    assert breakdown.module == "layer0"
    assert breakdown.categories == {Category.ACTIVATION: 60 * MIB, Category.WEIGHT: 30 * MIB}
    assert breakdown.modules == {"layer0": 90 * MIB}
    assert breakdown.internal_fragmentation_bytes == 0
    assert breakdown.allocator_reservation_bytes == 20 * MIB
    assert breakdown.device_bytes == (90 + 20 + 100) * MIB


def test_steps_have_peaks_of_their_own() -> None:
    """The first step lacks the optimizer's state, so its peak is not the steady one."""
    trace = job(
        [Polynomial(10 * MIB), Polynomial(20 * MIB), Polynomial(30 * MIB), Polynomial(20 * MIB)],
        [0, 1, ~1, 2, 3, ~3],
        marks=[Mark("build", 1), Mark("step 0", 4), Mark("step 1", 6)],
    )

    steps = Estimator(trace, CARD).at(1).steps()

    assert [(step.name, step.allocated_bytes // MIB) for step in steps] == [
        ("build", 10),
        ("step 0", 40),
        ("step 1", 60),
    ]


def test_a_trace_without_allocations_takes_the_context() -> None:
    """An evaluation of nothing is legal, and has nothing to break down."""
    estimator = Estimator(job([], []), CARD)

    assert estimator.at(4).peak_device_bytes == 100 * MIB
    assert estimator.lower_bound(4) == 0
    with pytest.raises(UsageError, match="a trace that allocates nothing has no peak to break down"):
        estimator.at(4).breakdown()


def test_provenance_says_how_the_number_came_about() -> None:
    """Whoever doubts a number must be able to repeat it."""
    policy = CachingPolicy(expandable_segments=True)

    provenance = Estimator(TWO_STORAGES, CARD, policy=policy, conv_workspace="limited").at(2).provenance

    assert provenance.framework == "torch 2.13.0"
    assert provenance.recorder == "by hand"
    assert provenance.traced_batch_sizes == (5, 8)
    assert provenance.allocator == "PyTorch caching allocator expandable_segments=True"
    assert provenance.conv_workspace == "limited"
    assert provenance.device == "made up"


def test_an_estimate_can_be_sent_to_another_process() -> None:
    """Ray and multiprocessing pickle what a trial returns."""
    estimate = Estimator(TWO_STORAGES, CARD).at(3)

    copy = pickle.loads(pickle.dumps(estimate))

    assert copy == estimate
    assert copy.breakdown() == estimate.breakdown()


# Arguments.


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True, "8"])
def test_a_batch_size_is_a_positive_whole_number(batch_size: object) -> None:
    """Anything else is a mistake of the caller, and no job that does not fit."""
    with pytest.raises(UsageError, match=f"a batch size is a whole number of at least 1, got {batch_size!r}"):
        Estimator(TWO_STORAGES, CARD).at(batch_size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"safety_bytes": -1}, "a margin is at least 0 bytes, got safety -1 and extra 0"),
        ({"extra_bytes": -2}, "a margin is at least 0 bytes, got safety 0 and extra -2"),
        ({"safety_fraction": 1.0}, "a safety fraction lies from 0 to below 1, got 1.0"),
        ({"unknown_operators": "ignore"}, 'unknown_operators is "report" or "count", got \'ignore\''),
        (
            {"conv_workspace": "some"},
            "there is no convolution workspace model 'some'; choose one of none, limited, benchmark",
        ),
        (
            {"safety_bytes": GIB},
            "card has 1.07 GiB; context and other processes take 100.0 MiB and a margin of 1.00 GiB leaves "
            "nothing; lower the safety margin or free the device",
        ),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    """Before anything is computed, and with what to do about it."""
    with pytest.raises(UsageError) as caught:
        Estimator(TWO_STORAGES, CARD, **options)  # type: ignore[arg-type]

    assert str(caught.value) == message


# What holds for every job.


POLICIES = (
    CachingPolicy(),
    CachingPolicy(expandable_segments=True),
    CachingPolicy(roundup_divisions=(4,) * 16),
    CachingPolicy(max_split_bytes=30 * MIB),
    CachingPolicy(memory_fraction=0.4, collection_threshold=0.6),
)


@given(trace=jobs(), batch_size=st.integers(1, 40), policy=st.sampled_from(POLICIES))
def test_each_peak_contains_the_one_before(trace: MemoryTrace, batch_size: int, policy: CachingPolicy) -> None:
    """Requested <= allocated <= reserved <= device, and the lower bound is below all of them."""
    estimator = Estimator(trace, CARD, policy=policy)
    estimate = estimator.at(batch_size)

    assert estimator.lower_bound(batch_size) <= estimate.peak_requested_bytes
    assert estimate.peak_requested_bytes <= estimate.peak_allocated_bytes <= estimate.peak_reserved_bytes
    assert estimate.peak_reserved_bytes + CARD.context_bytes == estimate.peak_device_bytes
    if estimate.fits:
        assert estimate.peak_device_bytes <= estimate.limit_bytes
    else:
        assert estimate.peak_device_bytes > estimate.limit_bytes


@given(trace=jobs(), batch_size=st.integers(1, 40))
def test_a_breakdown_adds_up_to_its_peak(trace: MemoryTrace, batch_size: int) -> None:
    """Categories, modules and the rest are a partition of what the device holds at that moment."""
    estimate = Estimator(trace, CARD).at(batch_size)
    if not estimate.peak_allocated_bytes:
        return

    at_allocated = estimate.breakdown("allocated")
    at_reserved = estimate.breakdown("reserved")

    assert at_allocated.allocated_bytes == estimate.peak_allocated_bytes
    assert at_allocated.reserved_bytes <= estimate.peak_reserved_bytes
    assert at_reserved.device_bytes == estimate.peak_device_bytes
    for breakdown in (at_allocated, at_reserved):
        assert sum(breakdown.modules.values()) == sum(breakdown.categories.values())
        assert breakdown.internal_fragmentation_bytes >= 0
        assert breakdown.allocator_reservation_bytes >= 0


@given(trace=jobs(), batch_size=st.integers(1, 40))
def test_step_peaks_contain_the_peak_of_the_job(trace: MemoryTrace, batch_size: int) -> None:
    """Parts that tile the job have its peaks as their largest."""
    middle = len(trace.events) // 2
    trace = replace(trace, marks=(Mark("first", middle), Mark("second", len(trace.events))))
    estimate = Estimator(trace, CARD).at(batch_size)

    steps = estimate.steps()

    assert max(step.allocated_bytes for step in steps) == estimate.peak_allocated_bytes
    assert max(step.reserved_bytes for step in steps) == estimate.peak_reserved_bytes


@given(trace=jobs(), batch_size=st.integers(1, 40), margins=st.tuples(st.integers(0, 900), st.integers(0, 900)))
def test_a_larger_margin_never_raises_the_limit(
    trace: MemoryTrace, batch_size: int, margins: tuple[int, int]
) -> None:
    """And a job that fits with the larger one reserves no more than its limit with either."""
    small, large = (Estimator(trace, CARD, safety_bytes=margin * MIB) for margin in sorted(margins))

    assert large.limit_bytes <= small.limit_bytes
    for estimator in (small, large):
        estimate = estimator.at(batch_size)
        if isinstance(estimate.outcome, Completed):
            assert estimate.peak_device_bytes <= estimator.limit_bytes
    if large.at(batch_size).headroom_bytes >= 0 and not large.at(batch_size).num_retries:
        # Nothing was tight with the large margin, so the small one sees the very same run.
        assert small.at(batch_size).peak_reserved_bytes == large.at(batch_size).peak_reserved_bytes


@given(trace=jobs(), batch_size=st.integers(1, 40))
def test_an_interval_holds_the_estimate(trace: MemoryTrace, batch_size: int) -> None:
    """Each cause moves one end or the other, never past the estimate."""
    estimate = Estimator(trace, CARD).at(batch_size)

    interval = estimate.interval()

    assert interval.low_bytes <= estimate.peak_device_bytes <= interval.high_bytes


@given(trace=jobs(), batch_size=st.integers(1, 40))
def test_the_estimate_is_the_allocators_own_peak(trace: MemoryTrace, batch_size: int) -> None:
    """A second way to the same number: drive the allocator by hand on a card without end."""
    estimate = Estimator(
        replace(trace, storages=tuple(replace(s, optional=False) for s in trace.storages)), CARD
    ).at(batch_size)
    allocator = CachingAllocator(CachingPolicy())
    sizes = [storage.size.at(batch_size) for storage in trace.storages if isinstance(storage.size, Polynomial)]
    allocator.run(trace.events, sizes)

    if not estimate.num_retries:
        assert estimate.peak_reserved_bytes == allocator.peak.reserved_bytes
        assert estimate.peak_allocated_bytes == allocator.peak.allocated_bytes


def test_the_interval_holds_what_another_release_would_reserve() -> None:
    """Which of two free blocks of 10 MiB is taken decides whether the segment of 30 MiB becomes whole again."""
    # Free: a segment of 10 MiB, and 10 MiB left of a younger one of 30 MiB that holds 20 MiB.
    trace = job([Polynomial(size * MIB) for size in (10, 30, 20, 10, 30)], [0, ~0, 1, ~1, 2, 3, ~2, 4])
    device = replace(CARD, context_uncertainty_bytes=0)
    newer = Estimator(trace, device).at(1)
    older = Estimator(trace, device, policy=CachingPolicy(tie_break=TieBreak.LOWEST_ADDRESS)).at(1)

    assert newer.peak_reserved_bytes == 40 * MIB
    assert older.peak_reserved_bytes == 70 * MIB
    for estimate in (newer, older):
        assert estimate.interval().low_bytes == newer.peak_device_bytes
        assert estimate.interval().high_bytes == older.peak_device_bytes
        assert [reason.cause for reason in estimate.interval().reasons] == ["choice among free blocks"]
