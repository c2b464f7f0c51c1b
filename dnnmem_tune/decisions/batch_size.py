"""The largest batch size that fits: a search that costs few probes and says what it does not know.

Nothing here knows a batch: any whole number of which the memory grows (a sequence length, a
width) can be searched. A probe is one verdict. Memory is *almost* a straight line in the
batch size, so the next place to look is interpolated from the peaks seen; it is not always
monotone (kernels and algorithms change with the size), so the neighbours of the answer are
looked at too, and a contradiction is reported rather than hidden.

The answer is ``largest_batch``, with ``first_too_large`` the next value of the grid, which
does not fit. Larger values that fit again are in ``also_fit_above``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnnmem_tune.decisions.accumulation import AccumulationPlan
from dnnmem_tune.decisions.grid import Grid, make_grid
from dnnmem_tune.decisions.verdict import Verdict, VerdictState

if TYPE_CHECKING:
    from dnnmem_tune.estimate.report import MemoryEstimate

MAX_BATCH_SIZE = 2**31 - 1
"""No kernel indexes a longer axis; a search without an upper bound ends here."""

_MOST_STEPS = 24
"""Looks taken beyond the first boundary, each a replay of some milliseconds."""

NUM_NEIGHBOURS = 4
"""How many values above the answer are looked at, half as many below it, and the next round ones."""

_GROWTH = 4
"""While no end is in sight, a value is at most this many times the largest one known to fit."""

_RUNNABLE_INDICES = (1, 2, 3, 7, 15, 31, 63, 127, 255, 511, 1023)
"""Where the smallest value that runs is looked for; on a grid from 1: 2, 3, 4, 8, 16 and so on to 1,024."""


@dataclass(frozen=True, slots=True)
class CannotRun:
    """The workload does not run at this value, on any card (batch norm over one value, say)."""

    reason: str
    """What it said, on one line."""


Outcome = Verdict | CannotRun
Probe = Callable[[int], Outcome]


@dataclass(frozen=True, slots=True)
class ProbedValue:
    """One look of a search."""

    value: int

    outcome: Outcome

    @property
    def fits(self) -> bool:
        """Whether it is known to fit."""
        return isinstance(self.outcome, Verdict) and self.outcome.state is VerdictState.FITS

    @property
    def exceeds(self) -> bool:
        """Whether it is known not to fit."""
        return isinstance(self.outcome, Verdict) and self.outcome.state is VerdictState.EXCEEDS

    @property
    def runs(self) -> bool:
        """Whether the workload runs at this value."""
        return not isinstance(self.outcome, CannotRun)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeResult:
    """What a search found, and every look it took."""

    searched: str
    """The hyperparameter that was searched, ``batch_size`` unless asked otherwise."""

    largest_batch: int | None
    """Largest value that fits; None where none is known to fit. Of ``searched``, whatever that is."""

    first_too_large: int | None
    """The next value of the grid, which does not fit; None where the search ended at its upper bound,
    or where the next value could not be decided."""

    smallest_runnable: int | None
    """Smallest value tried at which the workload runs; None where it runs at none."""

    step: int
    """Distance of two values of the grid; 0 for powers of two. Larger than asked for where the
    workload only runs at multiples."""

    maximum: int
    """Largest value that the search was allowed to answer with."""

    also_fit_above: tuple[int, ...]
    """Values beyond ``first_too_large`` that fit all the same."""

    probes: tuple[ProbedValue, ...]
    """Every look, by value."""

    reason: str
    """Why it is this value, in a sentence."""

    estimate: MemoryEstimate | None = None
    """The estimate at the largest that fits, where the search was made by this package's own estimator."""

    plans: tuple[AccumulationPlan, ...] = ()
    """How a wanted batch is made of micro-batches, where one was asked for; the one to take first."""

    @property
    def largest_value(self) -> int | None:
        """The same as ``largest_batch``, for code that searches something else."""
        return self.largest_batch

    @property
    def monotone(self) -> bool:
        """Whether no value that fits was seen above one that does not."""
        smallest = min((probe.value for probe in self.probes if probe.exceeds), default=None)
        return smallest is None or all(probe.value < smallest for probe in self.probes if probe.fits)

    @property
    def maximum_reached(self) -> bool:
        """Whether the upper bound of the search ended it, and not the card's memory."""
        return self.largest_batch == self.maximum

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the largest that fits; None where none does."""
        return self.verdict_at(self.largest_batch)

    @property
    def headroom_bytes(self) -> int | None:
        """Bytes left below the limit at the largest that fits; None where none does."""
        return self.verdict.headroom_bytes if self.verdict is not None else None

    def verdict_at(self, value: int | None) -> Verdict | None:
        """Return the verdict on ``value``, or None where it was not looked at or does not run."""
        for probe in self.probes:
            if probe.value == value and isinstance(probe.outcome, Verdict):
                return probe.outcome
        return None


def largest_batch(
    probe: Probe,
    *,
    minimum: int = 1,
    maximum: int = MAX_BATCH_SIZE,
    multiple_of: int = 1,
    power_of_two: bool = False,
    certainly_exceeds: Callable[[int], bool] | None = None,
    num_neighbours: int = NUM_NEIGHBOURS,
    searched: str = "batch_size",
) -> BatchSizeResult:
    """Return the largest value that fits.

    Args:
        probe: Value -> its verdict, or that the workload does not run there. Called once per value at most.
        minimum: Smallest value allowed.
        maximum: Largest value allowed; may be as large as 10**12 at no cost.
        multiple_of: Only multiples of it are answers.
        power_of_two: Only powers of two are answers.
        certainly_exceeds: A cheap test that is true only where ``probe`` would not say *fits*, and true
            above any value where it is true. It saves probes and decides nothing else.
        num_neighbours: How many values above the answer are checked, and half as many below it; 0 where a
            probe is expensive.
        searched: Name of the hyperparameter, for the messages.

    Raises:
        UsageError: If the bounds contradict each other.

    Example:
        >>> def probe(batch):
        ...     peak = 100 + 7 * batch
        ...     kind = Verdict.fits if peak <= 1000 else Verdict.exceeds
        ...     return kind(peak_bytes=peak, limit_bytes=1000)
        >>> result = largest_batch(probe)
        >>> result.largest_batch, result.first_too_large, result.headroom_bytes
        (128, 129, 4)

    """
    grid = make_grid(
        minimum=minimum, maximum=maximum, multiple_of=multiple_of, power_of_two=power_of_two, searched=searched
    )
    search = _Search(probe, certainly_exceeds)
    runnable = _runnable_grid(search, grid)
    if runnable is None:
        return _result(search, grid, None, None, searched)
    best, bound = _boundary(search, runnable)
    if certainly_exceeds is not None and num_neighbours:
        best, bound = _beyond_gaps(search, runnable, best, bound)
    for value in _neighbours(runnable, best, bound, num_neighbours):
        if not search.certainly_exceeds(value):
            search.look(value)
    return _result(search, runnable, best, bound, searched)


class _Search:
    """Looks taken so far."""

    def __init__(self, probe: Probe, certainly_exceeds: Callable[[int], bool] | None) -> None:
        self._probe = probe
        self.certainly_exceeds = certainly_exceeds or (lambda _value: False)
        self.seen: dict[int, ProbedValue] = {}

    def look(self, value: int) -> ProbedValue:
        if value not in self.seen:
            self.seen[value] = ProbedValue(value, self._probe(value))
        return self.seen[value]


def _runnable_grid(search: _Search, grid: Grid) -> Grid | None:
    """Return the part of the grid where the workload runs; None where it runs nowhere that was tried.

    A workload that does not run at the smallest value may run from the next on (batch norm over one
    value), or only at multiples (a reshape into groups).
    """
    if search.look(grid.first).runs:
        return grid
    runs = next((i for i in _RUNNABLE_INDICES if i < grid.length and search.look(grid.value(i)).runs), None)
    if runs is None:
        return None
    if grid.step == 0:
        return grid.from_index(runs)
    for stride in (1, 2, 4, 8, 16, 32, 64, runs + 1):
        if stride > runs + 1 or runs + stride >= grid.length:
            break
        if search.look(grid.value(runs + stride)).runs:
            return grid.from_index(runs, stride=stride)
    return grid.from_index(runs, stride=runs + 1)


def _boundary(search: _Search, grid: Grid) -> tuple[int | None, int | None]:
    """Return neighbouring indices: one that fits, the next one that does not. None where there is no such one."""
    if not search.look(grid.first).fits:
        return None, 0
    low, high = 0, _certain_bound(search, grid)
    misses = 0
    while high - low > 1:
        before = low, high
        index = _without_guess(grid, low, high) if misses >= 2 else _guess(search, grid, low, high)
        if search.look(grid.value(index)).fits:
            low = index
        else:
            high = index
        # A guess that is off by little may be so for ever: the peak of a job that lives by giving its cache
        # back stays at the limit over a wide range. A plain look follows two poor guesses, or one that was
        # sure of being at the boundary and was not.
        misses = 0 if misses >= 2 or _gained(grid, before, (low, high)) else misses + 1 + (low == before[0] + 1)
    if high < grid.length:
        search.look(grid.value(high))
    return low, high if high < grid.length else None


def _certain_bound(search: _Search, grid: Grid) -> int:
    """Return the smallest index known too large without a probe; the grid's length where none is."""
    low, high = 0, 1
    while high < grid.length and not search.certainly_exceeds(grid.value(high)):
        low, high = high, 2 * high
    high = min(high, grid.length)
    while high - low > 1:
        middle = (low + high) // 2
        if search.certainly_exceeds(grid.value(middle)):
            high = middle
        else:
            low = middle
    return high


def _beyond_gaps(
    search: _Search, grid: Grid, best: int | None, bound: int | None
) -> tuple[int | None, int | None]:
    """Return the boundary of the highest values that fit, where some beyond the first boundary do.

    A job that has to give its cache back may fit at a batch and not at smaller ones: with other
    sizes the cache is given back at another place. What is not certainly too large is looked at in
    even steps, from the top.
    """
    if best is None or bound is None:
        return best, bound
    ceiling = _certain_bound(search, grid)
    if ceiling >= grid.length:
        return best, bound
    above = ceiling
    for index in range(ceiling - 1, bound, -max(1, (ceiling - bound) // _MOST_STEPS)):
        if not search.look(grid.value(index)).fits:
            above = index
            continue
        low = index
        while above - low > 1:
            middle = (low + above) // 2
            if search.look(grid.value(middle)).fits:
                low = middle
            else:
                above = middle
        return low, above
    return best, bound


def _gained(grid: Grid, before: tuple[int, int], after: tuple[int, int]) -> bool:
    """Return whether a look has halved what is left, or doubled what fits while no end is in sight."""
    if after[1] == grid.length:
        return grid.value(after[0]) >= 2 * grid.value(before[0])
    return after[1] - after[0] <= (before[1] - before[0]) // 2


def _ceiling(grid: Grid, low: int, high: int) -> int:
    """Return the largest index to look at between two."""
    if high < grid.length:
        return high - 1
    return min(high - 1, max(low + 1, grid.index_below(_GROWTH * grid.value(low))))


def _without_guess(grid: Grid, low: int, high: int) -> int:
    """Return the middle of two indices, or a step up where the upper one is only the end of the grid."""
    return (low + high) // 2 if high < grid.length else _ceiling(grid, low, high)


def _guess(search: _Search, grid: Grid, low: int, high: int) -> int:
    """Return the index strictly between two, at which the straight line through the peaks meets the limit."""
    points = _points(search, grid.value(low), grid.value(high) if high < grid.length else None)
    if points is None:
        return _without_guess(grid, low, high)
    (value, peak), (other_value, other_peak), limit = points
    if other_peak <= peak:
        return _without_guess(grid, low, high)
    crossing = value + (limit - peak) * (other_value - value) // (other_peak - peak)
    return min(_ceiling(grid, low, high), max(low + 1, grid.index_below(crossing)))


def _points(search: _Search, low: int, high: int | None) -> tuple[tuple[int, int], tuple[int, int], int] | None:
    """Return the two looks nearest to the boundary that have a peak, as (value, peak), and the limit."""
    known = sorted(
        (probe.value, probe.outcome.peak_bytes, probe.outcome.limit_bytes)
        for probe in search.seen.values()
        if isinstance(probe.outcome, Verdict)
        and probe.outcome.peak_bytes is not None
        and probe.outcome.limit_bytes is not None
    )
    below = [point for point in known if point[0] <= low]
    above = [point for point in known if high is not None and point[0] >= high]
    if above:
        nearest = below[-1:] + above[:1]
    else:
        # Blocks and segments are rounded: two points side by side give no slope.
        apart = [point for point in below[:-1] if 4 * point[0] <= 3 * low] or below[-2:-1]
        nearest = apart[-1:] + below[-1:]
    if len(nearest) < 2:
        return None
    (value, peak, limit), (other_value, other_peak, _) = nearest
    return (value, peak), (other_value, other_peak), limit


def _neighbours(grid: Grid, best: int | None, bound: int | None, count: int) -> list[int]:
    """Return values that tell whether memory is monotone: a few on either side, and the next round ones."""
    if bound is None or count == 0:
        return []
    below = range(max(0, best - count // 2), best) if best is not None else range(0)
    above = range(bound + 1, min(bound + 1 + count, grid.length))
    values = [grid.value(index) for index in (*below, *above)]
    start = grid.value(bound)
    for unit in (8, 32, 64):
        rounded = (start // unit + 1) * unit
        index = grid.index_below(rounded)
        # A round value far above is a different question: only those within a tenth of the boundary.
        if grid.value(index) == rounded and index < grid.length and rounded <= start * 1.1:
            values.append(rounded)
    return sorted(set(values))


def _result(search: _Search, grid: Grid, best: int | None, bound: int | None, searched: str) -> BatchSizeResult:
    probes = tuple(search.seen[value] for value in sorted(search.seen))
    largest = grid.value(best) if best is not None else None
    beyond = search.look(grid.value(bound)) if bound is not None else None
    return BatchSizeResult(
        searched=searched,
        largest_batch=largest,
        first_too_large=beyond.value if beyond is not None and beyond.exceeds else None,
        smallest_runnable=min((probe.value for probe in probes if probe.runs), default=None),
        step=grid.step,
        maximum=grid.last,
        also_fit_above=tuple(
            probe.value for probe in probes if probe.fits and beyond is not None and probe.value > beyond.value
        ),
        probes=probes,
        reason=_reason(probes, grid, largest, beyond, searched),
    )


def _reason(
    probes: tuple[ProbedValue, ...], grid: Grid, largest: int | None, beyond: ProbedValue | None, searched: str
) -> str:
    name = "batch" if searched == "batch_size" else searched
    if beyond is None and largest is None:
        tried = ", ".join(str(probe.value) for probe in probes)
        return f"the workload runs at no {name} that was tried ({tried}): {_words(probes[0].outcome)}"
    if beyond is None:
        return f"every {name} up to {grid.last}, the largest allowed, fits"
    what = _words(beyond.outcome)
    if largest is None:
        smallest = f"{name} {beyond.value}"
        return f"it cannot be said for {smallest}: {what}" if not beyond.exceeds else f"even {smallest} {what}"
    if beyond.exceeds:
        return f"{name} {beyond.value} {what}"
    if not beyond.runs:
        return f"the workload does not run at {name} {beyond.value}: {what}"
    return f"nothing can be said beyond {name} {largest}, because at {beyond.value}: {what}"


def _words(outcome: Outcome) -> str:
    return outcome.reason
