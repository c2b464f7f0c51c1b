"""The search equals looking at every value, costs few looks, and says what it does not know."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.decisions.batch_size import BatchSizeResult, CannotRun, Outcome, largest_batch
from dnnmem_tune.decisions.verdict import Verdict

LIMIT = 1_000_000


def _probe(peak: Callable[[int], int]) -> Callable[[int], Verdict]:
    def probe(value: int) -> Verdict:
        kind = Verdict.fits if peak(value) <= LIMIT else Verdict.exceeds
        return kind(peak_bytes=peak(value), limit_bytes=LIMIT)

    return probe


def _linear_search(probe: Callable[[int], Verdict], values: list[int]) -> tuple[int | None, int | None]:
    largest = None
    for value in values:
        if probe(value).state != "fits":
            return largest, value
        largest = value
    return largest, None


@given(
    growth=st.lists(st.integers(0, 200_000), min_size=1, max_size=40),
    minimum=st.integers(1, 5),
    multiple_of=st.integers(1, 4),
    power_of_two=st.booleans(),
    bounded=st.booleans(),
)
def test_search_equals_linear_search_on_monotone_memory(
    growth: list[int], minimum: int, multiple_of: int, power_of_two: bool, bounded: bool
) -> None:
    """Whatever shape a growing curve has: jumps, plateaus, never reaching the limit."""
    peaks = [sum(growth[: index + 1]) for index in range(len(growth))]
    maximum = max(len(growth), 8)
    multiple_of = 1 if power_of_two else multiple_of

    def peak(value: int) -> int:
        return peaks[min(value, len(peaks)) - 1]

    values = [
        value
        for value in range(minimum, maximum + 1)
        if value % multiple_of == 0 and (not power_of_two or value & (value - 1) == 0)
    ]
    result = largest_batch(
        _probe(peak),
        minimum=minimum,
        maximum=maximum,
        multiple_of=multiple_of,
        power_of_two=power_of_two,
        certainly_exceeds=(lambda value: peak(value) * 9 // 10 > LIMIT) if bounded else None,
    )

    assert (result.largest_batch, result.first_too_large) == _linear_search(_probe(peak), values)
    assert result.monotone
    assert result.also_fit_above == ()


@given(constant=st.integers(0, LIMIT), slope=st.integers(1, 5000), quadratic=st.integers(0, 3))
def test_search_on_real_curves_takes_few_looks(constant: int, slope: int, quadratic: int) -> None:
    """A look is a replay, or a whole trace: a curve without jumps is settled in about log4(answer) + 5."""

    def peak(value: int) -> int:
        return constant + slope * value + quadratic * value * value

    result = largest_batch(_probe(peak), num_neighbours=0)

    largest = result.largest_batch or 0
    assert peak(largest) <= LIMIT or largest == 0
    assert peak(largest + 1) > LIMIT
    assert len(result.probes) <= max(largest, 1).bit_length() / 2 + 12


@given(best=st.integers(10, 3000), gap=st.integers(2, 5), slope=st.integers(20, 60), num_below=st.integers(0, 3))
def test_values_that_fit_again_above_are_reported(best: int, gap: int, slope: int, num_below: int) -> None:
    """GIVEN memory that drops just above the boundary THEN the answer stays and the others are told."""
    limit = best * slope

    def probe(value: int) -> Verdict:
        dips = best + 2 <= value <= best + gap
        peak = limit if dips else slope * value
        kind = Verdict.fits if peak <= limit else Verdict.exceeds
        return kind(peak_bytes=peak, limit_bytes=limit)

    result = largest_batch(probe, maximum=10**6, num_neighbours=4)

    assert not result.monotone
    fitting_values = {best} | set(range(best + 2, best + gap + 1))
    assert result.largest_batch in fitting_values
    assert result.first_too_large is not None
    assert probe(result.first_too_large).state == "exceeds"
    assert all(probe(value).state == "fits" for value in result.also_fit_above)


def test_value_just_below_the_answer_that_does_not_fit_is_reported() -> None:
    """GIVEN that an algorithm of its own makes 99 too large THEN the answer stays 100, and it is told."""

    def probe(value: int) -> Verdict:
        peak = 20_000 * value if value == 99 else 10_000 * value
        return (Verdict.fits if peak <= LIMIT else Verdict.exceeds)(peak_bytes=peak, limit_bytes=LIMIT)

    result = largest_batch(probe)

    assert (result.largest_batch, result.first_too_large, result.monotone) == (100, 101, False)


def test_huge_bounds_neither_overflow_nor_loop() -> None:
    """GIVEN an upper bound of 10**12 THEN no value far above the answer is ever looked at."""
    looked: list[int] = []

    def probe(value: int) -> Verdict:
        looked.append(value)
        return _probe(lambda batch: 7 * batch)(value)

    result = largest_batch(probe, maximum=10**12)

    assert (result.largest_batch, result.first_too_large) == (142_857, 142_858)
    assert max(looked) <= 4 * 142_857
    assert len(looked) < 30


def test_memory_that_does_not_grow_ends_at_the_upper_bound() -> None:
    """A workload that ignores its batch is told apart from a card without an end."""
    result = largest_batch(_probe(lambda _batch: 5), maximum=10**12)

    assert (result.largest_batch, result.first_too_large) == (10**12, None)
    assert result.maximum_reached
    assert result.reason == "every batch up to 1000000000000, the largest allowed, fits"
    assert len(result.probes) < 50


def test_not_even_the_minimum_fits() -> None:
    """Zero is no batch: there is no largest one."""
    result = largest_batch(_probe(lambda batch: LIMIT + batch), minimum=2)

    assert (result.largest_batch, result.first_too_large) == (None, 2)
    assert result.headroom_bytes is None
    assert result.reason.startswith(
        "even batch 2 would take 976.6 KiB of device memory if there were room, 2 B above"
    )


def test_reason_names_the_first_that_does_not_fit() -> None:
    """In the words of what was searched."""
    result = largest_batch(_probe(lambda batch: 300_000 * batch), searched="seq_len")

    assert (result.largest_batch, result.first_too_large, result.headroom_bytes) == (3, 4, 100_000)
    assert result.reason.startswith(
        "seq_len 4 would take 1.1 MiB of device memory if there were room, 195.3 KiB above"
    )


def _only(runs: Callable[[int], bool]) -> Callable[[int], Outcome]:
    fitting = _probe(lambda batch: 1000 * batch)
    return lambda value: fitting(value) if runs(value) else CannotRun("expected more than 1 value per channel")


def test_workload_that_does_not_run_at_one_is_searched_from_two() -> None:
    """Batch norm over one value raises: that is not a verdict on the memory."""
    result = largest_batch(_only(lambda batch: batch >= 2))

    assert (result.smallest_runnable, result.largest_batch, result.step) == (2, 1000, 1)


@pytest.mark.parametrize("multiple", [2, 3, 4, 8, 32])
def test_workload_that_runs_at_multiples_only_is_searched_on_them(multiple: int) -> None:
    """A reshape into groups: 7 is no answer where only 4 and 8 run."""
    result = largest_batch(_only(lambda batch: batch % multiple == 0))

    largest = 1000 // multiple * multiple
    assert (result.smallest_runnable, result.largest_batch) == (multiple, largest)
    assert (result.first_too_large, result.step) == (largest + multiple, multiple)


def test_workload_that_runs_nowhere_says_what_was_tried() -> None:
    """With what the workload itself said."""
    result = largest_batch(_only(lambda _batch: False), maximum=4)

    assert (result.largest_batch, result.first_too_large, result.smallest_runnable) == (None, None, None)
    assert result.reason == (
        "the workload runs at no batch that was tried (1, 2, 3, 4): expected more than 1 value per channel"
    )


def test_unknown_is_no_verdict() -> None:
    """GIVEN verdicts that become unknown from 5 on THEN 5 is not called too large."""

    def probe(value: int) -> Verdict:
        return Verdict.unknown("no memory rule for aten::foo") if value >= 5 else _probe(lambda b: b)(value)

    result = largest_batch(probe)

    assert (result.largest_batch, result.first_too_large) == (4, None)
    assert result.reason == "nothing can be said beyond batch 4, because at 5: no memory rule for aten::foo"
    assert not result.maximum_reached


def test_unknown_at_the_minimum_is_said_so() -> None:
    """And is not called too large."""
    result = largest_batch(lambda _value: Verdict.unknown("no memory rule for aten::foo"))

    assert (result.largest_batch, result.first_too_large) == (None, None)
    assert result.reason == "it cannot be said for batch 1: no memory rule for aten::foo"


def test_an_error_in_a_probe_is_not_a_verdict() -> None:
    """A bug must never look like a full card."""

    def probe(value: int) -> Verdict:
        raise ZeroDivisionError(value)

    with pytest.raises(ZeroDivisionError):
        largest_batch(probe)


def test_each_value_is_looked_at_once() -> None:
    """A look may be a whole trace."""
    looked: list[int] = []

    def probe(value: int) -> Verdict:
        looked.append(value)
        return _probe(lambda batch: 30_000 * batch)(value)

    result: BatchSizeResult = largest_batch(probe, certainly_exceeds=lambda value: 29_000 * value > LIMIT)

    assert len(looked) == len(set(looked)) == len(result.probes)


def test_value_that_the_workload_refuses_is_a_bound_and_not_too_large() -> None:
    """GIVEN 512 positions THEN 513 tokens are refused by the model, not by the card."""
    result = largest_batch(_only(lambda value: value <= 512), searched="seq_len")

    assert (result.largest_batch, result.first_too_large) == (512, None)
    assert result.reason == "the workload does not run at seq_len 513: expected more than 1 value per channel"


def test_what_fits_beyond_a_gap_is_found() -> None:
    """A job that gives its cache back fits at 7352 of a T4 and not at 6881, as PyTorch's own allocator has it."""

    def probe(batch: int) -> Verdict:
        fits = batch <= 6880 or 7340 <= batch <= 7352
        peak = 1000 if fits else 1001
        return (Verdict.fits if fits else Verdict.exceeds)(peak_bytes=peak, limit_bytes=1000)

    result = largest_batch(probe, certainly_exceeds=lambda batch: batch > 7400, multiple_of=4)

    assert (result.largest_batch, result.first_too_large) == (7352, 7356)
    assert not result.monotone
    assert len(result.probes) < 80
