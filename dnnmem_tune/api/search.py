"""The largest batch of a workload, or the largest value of one of its hyperparameters.

The search itself is ``decisions.batch_size``; here it is given the estimates to look at, and
its answer is confirmed by a run at exactly that batch size, since a fitted trace cannot know
that a workload refuses it.
"""

from __future__ import annotations

import bisect
import contextlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dnnmem_tune.api.arguments import batch_size_of, plain_params, whole_number
from dnnmem_tune.decisions.accumulation import AccumulationPlan, plan_accumulation
from dnnmem_tune.decisions.batch_size import (
    MAX_BATCH_SIZE,
    BatchSizeResult,
    CannotRun,
    Outcome,
    largest_batch,
)
from dnnmem_tune.decisions.grid import make_grid
from dnnmem_tune.decisions.verdict import Verdict, verdict_of
from dnnmem_tune.errors import DnnMemError, UsageError, WorkloadError
from dnnmem_tune.frontends.traced import FITTED_AT
from dnnmem_tune.ir.fit import Mismatch, fit_traces
from dnnmem_tune.ir.trace import MemoryTrace

if TYPE_CHECKING:
    from dnnmem_tune.api.session import EstimationSession
    from dnnmem_tune.estimate.devices import DeviceProfile
    from dnnmem_tune.frontends.traced import TracedWorkload

_GROUPS = (2, 3, 4, 5, 6, 8, 16, 32, 64)
"""Multiples tried where the answer turns out not to run: how workloads split their batch."""

_NEAR = 0.95
"""Where the largest batch lies as a share of the one whose live bytes alone fill the card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Which values may be the answer."""

    minimum: int = 1

    maximum: int | None = None
    """None: as far as a kernel can index."""

    multiple_of: int = 1

    power_of_two: bool = False

    def __post_init__(self) -> None:
        for name in ("minimum", "multiple_of"):
            whole_number(getattr(self, name), name, maximum=MAX_BATCH_SIZE)
        if self.maximum is not None:
            whole_number(self.maximum, "maximum")
        make_grid(
            minimum=self.minimum,
            maximum=self.ceiling,
            multiple_of=self.multiple_of,
            power_of_two=self.power_of_two,
        )

    @property
    def ceiling(self) -> int:
        """The largest value to look at."""
        return MAX_BATCH_SIZE if self.maximum is None else min(self.maximum, MAX_BATCH_SIZE)

    def in_steps_of(self, multiple: int) -> Bounds:
        """Return these bounds for multiples of ``multiple`` only."""
        return replace(self, multiple_of=math.lcm(self.multiple_of, multiple))


def search_batch_size(
    session: EstimationSession, device: DeviceProfile, params: dict[str, Any], bounds: Bounds
) -> BatchSizeResult:
    """Return the largest batch of a workload on a card, confirmed by a run at exactly that size.

    Raises:
        UsageError: If the bounds contradict each other.
        WorkloadError: If the workload runs at no batch size that was tried.
        TraceError: If it cannot be traced.

    """
    _trace_near_the_answer(session, device, params, bounds)
    result = _search(session, device, params, bounds)
    while (others := _contradicted(session, device, params, bounds, result)) is not None:
        bounds = others
        result = _search(session, device, params, bounds)
    if result.largest_batch is None:
        return result
    estimator = session.estimator(result.largest_batch, device, params, reusable=True)
    return replace(result, estimate=estimator.at(result.largest_batch))


def _trace_near_the_answer(
    session: EstimationSession, device: DeviceProfile, params: dict[str, Any], bounds: Bounds
) -> None:
    """Have the fit checked where it will be used: at about the largest batch.

    A fit costs two traces and a third that checks it. Checked near the answer, at a value without
    common factors, it also says that the workload runs there, and no fourth trace has to confirm that.
    """
    traced = session.traced(device, params)
    traces = [trace for trace in traced.exact_traces(FITTED_AT) if isinstance(trace, MemoryTrace)]
    if len(traces) < len(FITTED_AT) or bounds.power_of_two:
        return
    fitted = fit_traces(dict(zip(FITTED_AT, traces, strict=True)))
    if isinstance(fitted, Mismatch):
        return
    estimator = session.estimator_of(fitted, device)
    # Live bytes alone reach the card's capacity a little above the largest batch.
    too_large = bisect.bisect_left(
        range(1, bounds.ceiling + 1),
        True,
        key=lambda batch_size: estimator.lower_bound(batch_size) > estimator.capacity_bytes,
    )
    multiple = int(_NEAR * too_large) // bounds.multiple_of
    near = bounds.multiple_of * (multiple if multiple % 2 else multiple - 1)
    if near > max(FITTED_AT):
        # Beside the check, the smallest batch: the search asks whether it runs.
        traced.exact_traces((near, 1) if bounds.minimum == 1 else (near,))
        with contextlib.suppress(WorkloadError):
            traced.trace_for(near)


def _search(
    session: EstimationSession, device: DeviceProfile, params: dict[str, Any], bounds: Bounds
) -> BatchSizeResult:
    look = _Look(session, device, params)
    result = largest_batch(
        look.verdict,
        minimum=bounds.minimum,
        maximum=bounds.ceiling,
        multiple_of=bounds.multiple_of,
        power_of_two=bounds.power_of_two,
        certainly_exceeds=look.certainly_exceeds,
    )
    if result.smallest_runnable is None:
        assert look.first_error is not None
        raise look.first_error
    return result


def _contradicted(
    session: EstimationSession,
    device: DeviceProfile,
    params: dict[str, Any],
    bounds: Bounds,
    result: BatchSizeResult,
) -> Bounds | None:
    """Return the bounds to search again where a run at exactly the answer contradicts it; None where it agrees."""
    answer = result.largest_batch
    # Batch 1 has a trace of its own: its estimate is an exact run already.
    if answer is None or answer == 1:
        return None
    traced = session.traced(device, params)
    if answer % math.gcd(*traced.trace_for(answer).batch_sizes) == 0:
        return None
    try:
        # Where the fit does not hold, each batch size has a trace of its own from here on.
        return None if traced.confirm(answer) else bounds
    except WorkloadError:
        for group in _GROUPS:
            candidate = answer // group * group
            if bounds.minimum <= candidate < answer and _runs(traced, candidate):
                return bounds.in_steps_of(group)
        raise


def _runs(traced: TracedWorkload, batch_size: int) -> bool:
    try:
        traced.exact_trace(batch_size)
    except WorkloadError:
        return False
    return True


class _Look:
    """What one search asks about one workload on one card."""

    def __init__(self, session: EstimationSession, device: DeviceProfile, params: dict[str, Any]) -> None:
        self._session = session
        self._device = device
        self._params = params
        self.first_error: WorkloadError | None = None

    def verdict(self, batch_size: int) -> Outcome:
        try:
            estimator = self._session.estimator(batch_size, self._device, self._params, reusable=True)
            return verdict_of(estimator.at(batch_size))
        except WorkloadError as error:
            self.first_error = self.first_error or error
            return CannotRun(str(error))

    def certainly_exceeds(self, batch_size: int) -> bool:
        """Compare live bytes with the card: an estimate that costs no replay, where one trace serves all."""
        if self._session.traced(self._device, self._params).unfitted_reason:
            return False  # a trace for each look would cost more than it saves
        try:
            estimator = self._session.estimator(batch_size, self._device, self._params, reusable=True)
        except WorkloadError:
            return False
        if len(estimator.trace.batch_sizes) < 2:
            return False
        return estimator.lower_bound(batch_size) > estimator.capacity_bytes


def search_value(
    session: EstimationSession,
    device: DeviceProfile,
    name: str,
    batch_size: int,
    params: dict[str, Any],
    bounds: Bounds,
) -> BatchSizeResult:
    """Return the largest value of a whole-number hyperparameter at a fixed batch size.

    Each look is a trace of its own, so that neighbours of the answer are not checked.

    Raises:
        UsageError: If the bounds contradict each other or the name is no hyperparameter's.
        WorkloadError: If the workload runs at no value that was tried.
        TraceError: If it cannot be traced.

    """
    if name in params:
        raise UsageError(
            f"{name!r} is searched and cannot be fixed at {params[name]!r} as well; drop one of the two"
        )
    plain_params({name: 1})
    size = batch_size_of(batch_size)
    errors: list[DnnMemError] = []
    some_run = False

    def verdict(value: int) -> Outcome:
        nonlocal some_run
        try:
            estimate = session.estimate(size, device, {**params, name: value})
        except (UsageError, WorkloadError) as error:
            # Beyond what a model takes (more tokens than positions) is a bound; a name it does not take is not.
            if isinstance(error, UsageError) and not some_run:
                raise
            errors.append(error)
            return CannotRun(str(error))
        some_run = True
        return verdict_of(estimate)

    result = largest_batch(
        verdict,
        minimum=bounds.minimum,
        maximum=bounds.ceiling,
        multiple_of=bounds.multiple_of,
        power_of_two=bounds.power_of_two,
        num_neighbours=0,
        searched=name,
    )
    if result.smallest_runnable is None:
        raise errors[0]
    if result.largest_batch is None:
        return result
    return replace(result, estimate=session.estimate(size, device, {**params, name: result.largest_batch}))


def plans_for(
    session: EstimationSession,
    device: DeviceProfile,
    params: dict[str, Any],
    bounds: Bounds,
    result: BatchSizeResult,
    target_batch: int,
) -> tuple[AccumulationPlan, ...]:
    """Return how ``target_batch`` is made of micro-batches that fit.

    Accumulation keeps the gradients of earlier micro-batches, which costs memory of its own: where
    the workload takes ``accumulation``, the micro-batch is estimated with it.
    """
    target = whole_number(target_batch, "target_batch", maximum=MAX_BATCH_SIZE)
    if result.largest_batch is None:
        return ()
    if target <= result.largest_batch and _fits(session, device, params, target):
        return plan_accumulation(target, target)
    from dnnmem_tune.api.parameters import accepted_parameters

    traced = "accumulation" in accepted_parameters(session.workload) and "accumulation" not in params
    accumulating = {**params, "accumulation": 2} if traced else params
    largest = result.largest_batch
    if traced:
        limited = replace(bounds, maximum=result.largest_batch)
        largest = _search(session, device, accumulating, limited).largest_batch or 0
    if largest == 0:
        return ()
    plans = plan_accumulation(
        target,
        largest,
        fits=lambda micro_batch: (
            micro_batch >= bounds.minimum and _fits(session, device, accumulating, micro_batch)
        ),
    )
    return tuple(replace(plan, traced=traced) for plan in plans)


def _fits(session: EstimationSession, device: DeviceProfile, params: dict[str, Any], batch_size: int) -> bool:
    outcome = _Look(session, device, params).verdict(batch_size)
    return isinstance(outcome, Verdict) and outcome.state == "fits"
