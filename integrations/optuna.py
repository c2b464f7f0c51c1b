"""Optuna: no trial is launched that cannot fit, and the sampler learns where the limit is.

Call `MemoryConstraint.check` after the ``suggest_*`` calls and before anything expensive::

    guard = MemoryGuard("train.py:build", gpu="A100-40GB")
    constraint = MemoryConstraint(guard)

    def objective(trial):
        params = {"batch_size": trial.suggest_int("batch_size", 8, 512), ...}
        constraint.check(trial, params)   # raises TrialPruned where it cannot fit
        return train(params)

Every trial gets the constraint ``gpu_memory`` with the value ``peak / limit - 1``, vetoed or not.
That is what makes the search better and not only safer: reported as FAIL, or pruned without a
constraint, the same parameters are proposed again, or the sampler is driven away from the boundary
where the best models often are.

Optuna 5 has constraints of its own. On Optuna 4 pass ``constraints_func=memory_constraints`` to the sampler.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from dnnmem_tune.decisions.space import Choices, Numbers, Parameter, SearchSpace
from dnnmem_tune.decisions.verdict import Verdict
from dnnmem_tune.errors import DnnMemError, MissingPackageError, UsageError
from dnnmem_tune.guard import MemoryGuard

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.pruners import BasePruner
    from optuna.study import Study, StudyDirection
    from optuna.trial import BaseTrial, FrozenTrial, Trial, TrialState
except ImportError as error:
    raise MissingPackageError(
        f"the Optuna integration needs the package 'optuna', which cannot be imported ({error}); "
        'run pip install "dnnmem-tune[optuna]"'
    ) from error

logger = logging.getLogger(__name__)

CONSTRAINT = "gpu_memory"
"""Name of the constraint; user attributes start with it as well."""

VERDICT = f"{CONSTRAINT}_verdict"
"""``fits``, ``exceeds`` or ``unknown``."""

DECISION = f"{CONSTRAINT}_decision"
"""``launched``, ``vetoed``, or ``withdrawn`` where enough trials had been launched."""

VIOLATION = f"{CONSTRAINT}_violation"
ESTIMATE = f"{CONSTRAINT}_estimate"
LIMIT = f"{CONSTRAINT}_limit"
REASON = f"{CONSTRAINT}_reason"
LARGEST_BATCH = f"{CONSTRAINT}_largest_batch"
"""On vetoed trials: the largest batch size that would fit; 0 if none does."""

MEASURED = f"{CONSTRAINT}_measured"
"""Set by your code or by `MemoryConstraint.watch`: the device peak of the real run in bytes."""

OUT_OF_MEMORY = f"{CONSTRAINT}_out_of_memory"
"""Set by your code or by `MemoryConstraint.watch`: whether the real run ran out of memory."""

_HAS_CONSTRAINTS = hasattr(BaseTrial, "set_constraint")
_WRITE_ATTEMPTS = 3

Objective = Callable[[Trial], Any]
Space = Mapping[str, BaseDistribution] | Callable[[Trial], Mapping[str, Any]]


class MemoryVeto(optuna.TrialPruned):
    """A trial that is not launched because it does not fit."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"not launched: {verdict.reason}")
        self.verdict = verdict


class MemoryConstraint:
    """Judges each trial before it is launched.

    Args:
        guard: What judges.
        tell: What a vetoed trial becomes. ``"pruned"`` suits TPE, CMA-ES, grids and random search.
            ``"complete"`` suits NSGA-II, NSGA-III and GP, which learn from completed trials only: with
            an objective wrapped by `guarded` the trial completes with the worst value seen so far and
            is marked infeasible, so that it is never the best trial.
        budget: Stops the study after a number of launched trials.

    """

    def __init__(
        self,
        guard: MemoryGuard,
        *,
        tell: Literal["pruned", "complete"] = "pruned",
        budget: LaunchBudget | None = None,
    ) -> None:
        if tell not in ("pruned", "complete"):
            raise UsageError(f'MemoryConstraint: tell is "pruned" or "complete", got {tell!r}')
        self.guard = guard
        self.tell = tell
        self.budget = budget

    def check(self, trial: BaseTrial, params: Mapping[str, Any] | None = None) -> Verdict:
        """Judge a trial, write down the verdict, and refuse the trial if it cannot fit.

        Works in single- and multi-objective studies; also for `FixedTrial`.

        Args:
            trial: The trial, after its ``suggest_*`` calls.
            params: Hyperparameters of the workload; by default those suggested.

        Returns:
            The verdict, where the trial may be launched.

        Raises:
            MemoryVeto: A `TrialPruned`: the trial must not be launched.

        """
        asked = dict(params if params is not None else trial.params)
        self.guard.expect(_ranges(trial, asked))
        verdict = self.guard.check(asked)
        if store_verdict(trial, self.guard, verdict) == "vetoed":
            self._advise(trial, asked)
            raise MemoryVeto(verdict)
        if self.budget is not None and not self.budget.grants(trial):
            _set_attr(trial, DECISION, "withdrawn")
            raise optuna.TrialPruned("not launched: the launches of this study are used up")
        return verdict

    def guarded(self, objective: Objective) -> Objective:
        """Return the objective, with vetoed trials told as ``tell`` says.

        Only needed with ``tell="complete"``; the objective calls `check` as always.
        """

        @functools.wraps(objective)
        def wrapped(trial: Trial) -> Any:
            try:
                return objective(trial)
            except MemoryVeto:
                if self.tell == "pruned":
                    raise
                return _worst_values(trial.study)

        return wrapped

    @contextlib.contextmanager
    def watch(self, trial: BaseTrial) -> Iterator[None]:
        """Record what a launched trial really takes.

        Within, an out-of-memory error becomes a `TrialPruned`, so that the study goes on; the measured
        peak or the error is stored with the trial, where `record_outcome` finds it.
        """
        torch = _imported_torch()
        if torch is not None:
            torch.cuda.reset_peak_memory_stats()
        try:
            yield
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            _set_attr(trial, OUT_OF_MEMORY, True)
            raise optuna.TrialPruned(f"ran out of memory: {error}") from error
        if torch is not None:
            free, total = torch.cuda.mem_get_info()
            reserved = torch.cuda.memory_reserved()
            # What nvidia-smi shows of this process, as far as it can be told from within.
            _set_attr(trial, MEASURED, torch.cuda.max_memory_reserved() + max(0, total - free - reserved))

    def _advise(self, trial: BaseTrial, asked: Mapping[str, Any]) -> None:
        with contextlib.suppress(DnnMemError):
            _set_attr(trial, LARGEST_BATCH, self.guard.largest_batch(asked).largest_batch or 0)


def memory_constraints(trial: FrozenTrial) -> tuple[float]:
    """Return the constraint of a trial: ``constraints_func`` for the samplers of Optuna 4."""
    return (float(trial.user_attrs.get(VIOLATION, 0.0)),)


def record_outcome(guard: MemoryGuard) -> Callable[[Study, FrozenTrial], None]:
    """Return a callback for ``Study.optimize`` that tells the guard what really happened.

    A trial that ran out of memory is vetoed from then on; see `MemoryGuard.observe`.
    """

    def callback(study: Study, trial: FrozenTrial) -> None:
        peak, out_of_memory = trial.user_attrs.get(MEASURED), bool(trial.user_attrs.get(OUT_OF_MEMORY))
        if peak is not None or out_of_memory:
            with contextlib.suppress(DnnMemError):  # Parameters that do not hold a batch size say nothing.
                guard.observe(trial.params, peak_bytes=peak, out_of_memory=out_of_memory)

    return callback


class LaunchBudget:
    """Ends a study after so many *launched* trials, or so many vetoes in a row.

    ``n_trials`` counts vetoed trials too, and with several workers a callback that counts lets each of
    them launch one more. Pass one budget both to `MemoryConstraint` and to ``Study.optimize`` as a
    callback: then no more than ``launched`` trials are launched, also by many processes on one storage.

    Args:
        launched: Trials to launch; vetoed ones do not count, failed ones do.
        vetoes_in_a_row: Give up after so many vetoed trials one after the other; None to go on.

    """

    def __init__(self, launched: int, *, vetoes_in_a_row: int | None = None) -> None:
        for name, value in (("launched", launched), ("vetoes_in_a_row", vetoes_in_a_row)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"LaunchBudget: {name} must be a whole number of at least 1, got {value!r}")
        self.launched = launched
        self.vetoes_in_a_row = vetoes_in_a_row

    def __call__(self, study: Study, trial: FrozenTrial) -> None:
        """Stop the study where the budget is used up."""
        trials = study.get_trials(deepcopy=False)
        if len(_launched(trials)) >= self.launched or self._gave_up(trials):
            study.stop()

    def grants(self, trial: BaseTrial) -> bool:
        """Return whether a trial that has just been marked as launched is within the budget."""
        if not isinstance(trial, Trial):
            return True
        # Marked first and counted afterwards: two that do so at once both see both, and none is one too many.
        launched = _launched(trial.study.get_trials(deepcopy=False))
        return sum(other.number != trial.number for other in launched) < self.launched

    def _gave_up(self, trials: Sequence[FrozenTrial]) -> bool:
        if self.vetoes_in_a_row is None:
            return False
        last = [trial for trial in trials if trial.state.is_finished()][-self.vetoes_in_a_row :]
        return len(last) == self.vetoes_in_a_row and all(_decision(trial) == "vetoed" for trial in last)


class MemoryPruner(BasePruner):
    """A pruner for code that calls ``should_prune`` and nothing else.

    Vetoes a trial that cannot fit the first time it is asked, no matter what was reported, and
    otherwise does what the inner pruner does. Prefer `MemoryConstraint`, which needs no training
    step before the first question and works in multi-objective studies.

    Args:
        guard: What judges.
        inner: Pruner to consult about trials that fit.

    """

    def __new__(cls, guard: MemoryGuard, inner: BasePruner | None = None) -> MemoryPruner:
        """Make a pruner that still *is* the inner one: samplers look for `HyperbandPruner` by its type."""
        kind = type(inner) if inner is not None else optuna.pruners.NopPruner
        combined = type(f"Memory{kind.__name__}", (cls, kind), {"__reduce__": _reduce_pruner})
        pruner = cast(MemoryPruner, object.__new__(combined))
        pruner.__dict__ = inner.__dict__ if inner is not None else {}
        return pruner

    def __init__(self, guard: MemoryGuard, inner: BasePruner | None = None) -> None:
        self._memory_guard = guard
        self._memory_inner = inner

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether the trial cannot fit, or else what the inner pruner says."""
        if DECISION not in trial.user_attrs:
            self._judge(study, trial)
        elif _decision(trial) == "vetoed":
            return True
        if _decision(study._storage.get_trial(trial._trial_id)) == "vetoed":
            return True
        return bool(super().prune(study, trial))  # type: ignore[safe-super]

    def _judge(self, study: Study, trial: FrozenTrial) -> None:
        verdict = self._memory_guard.check(trial.params)
        store_verdict(_StoredTrial(study, trial), self._memory_guard, verdict)


def _reduce_pruner(pruner: MemoryPruner) -> tuple[Any, ...]:
    return MemoryPruner, (pruner._memory_guard, pruner._memory_inner)


@dataclass(frozen=True, slots=True)
class FittingTrials:
    """What `ask_fitting` found."""

    trials: tuple[Trial, ...]
    """Trials to launch and to tell."""

    params: tuple[Mapping[str, Any], ...]
    """Their hyperparameters."""

    num_asked: int

    vetoed: tuple[FrozenTrial, ...]
    """Trials that were told as pruned, with the reasons among their attributes."""


def ask_fitting(
    study: Study,
    space: Space,
    n: int,
    constraint: MemoryConstraint,
    *,
    max_asks: int = 1000,
) -> FittingTrials:
    """Ask a study for trials that fit, for launchers of their own that run several at once.

    Args:
        study: The study; vetoed trials are told to it as pruned.
        space: Distributions by parameter, or a function that suggests and returns the parameters.
        n: Trials wanted.
        constraint: What judges; its guard traces several at once.
        max_asks: Give up after so many.

    Returns:
        At most ``n`` trials: fewer where ``max_asks`` was reached or the sampler has no more to offer.

    Example:
        >>> found = ask_fitting(study, space, 4, constraint)  # doctest: +SKIP
        >>> for trial in found.trials:  # doctest: +SKIP
        ...     launch(trial.number, trial.params)

    """
    accepted: list[tuple[Trial, Mapping[str, Any]]] = []
    vetoed: list[FrozenTrial] = []
    num_asked = 0
    while len(accepted) < n and num_asked < max_asks and not _is_exhausted(study):
        asked = [_ask(study, space) for _ in range(min(n - len(accepted), max_asks - num_asked))]
        num_asked += len(asked)
        waiting = [constraint.guard.submit(params) for _, params in asked]
        for future in waiting:
            future.result()
        for trial, params in asked:
            try:
                constraint.check(trial, params)
            except optuna.TrialPruned:
                vetoed.append(_tell_pruned(study, trial))
            else:
                accepted.append((trial, params))
    return FittingTrials(
        trials=tuple(trial for trial, _ in accepted),
        params=tuple(params for _, params in accepted),
        num_asked=num_asked,
        vetoed=tuple(vetoed),
    )


def space_of(distributions: Mapping[str, BaseDistribution], *, batch_param: str = "batch_size") -> SearchSpace:
    """Return Optuna distributions as a space that ``guard.survey`` judges before the search.

    Args:
        distributions: By parameter, as ``study.ask(fixed_distributions=...)`` takes them and every
            trial has them in ``trial.distributions``.
        batch_param: Which of them is the batch size.

    Raises:
        UsageError: If a distribution is of a kind that is not known.

    """
    return SearchSpace(
        parameters={name: _parameter(name, distribution) for name, distribution in distributions.items()},
        batch_param=batch_param,
    )


def distributions_of(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return a space, such as the reduced one of a survey, as Optuna distributions; constants are left out."""
    distributions: dict[str, BaseDistribution] = {}
    for name, kind in space.parameters.items():
        if isinstance(kind, Choices):
            distributions[name] = CategoricalDistribution(kind.options)
        elif kind.whole:
            # Optuna allows no step beside a logarithmic scale.
            step = 1 if kind.log else int(kind.step or 1)
            distributions[name] = IntDistribution(int(kind.low), int(kind.high), log=kind.log, step=step)
        else:
            distributions[name] = FloatDistribution(kind.low, kind.high, log=kind.log, step=kind.step)
    return distributions


def _parameter(name: str, distribution: BaseDistribution) -> Parameter:
    match distribution:
        case FloatDistribution():
            return Numbers(
                low=distribution.low, high=distribution.high, step=distribution.step, log=distribution.log
            )
        case IntDistribution():
            step = distribution.step if not distribution.log else None
            return Numbers(
                low=distribution.low, high=distribution.high, step=step, log=distribution.log, whole=True
            )
        case CategoricalDistribution():
            return Choices(tuple(distribution.choices))
    raise UsageError(f"parameter {name!r} has the distribution {distribution!r}, which is not known")


class _StoredTrial:
    """Write access to a trial that a pruner sees only as a copy."""

    def __init__(self, study: Study, trial: FrozenTrial) -> None:
        self._storage = study._storage
        self._trial_id = trial._trial_id

    def set_user_attr(self, key: str, value: Any) -> None:
        self._storage.set_trial_user_attr(self._trial_id, key, value)

    def set_constraint(self, key: str, value: float) -> None:
        self._storage.set_trial_system_attr(self._trial_id, f"constraints:{key}", value)

    @property
    def constraints(self) -> Mapping[str, float]:
        return self._storage.get_trial(self._trial_id).constraints


def store_verdict(trial: Any, guard: MemoryGuard, verdict: Verdict) -> str:
    """Store a verdict with a trial; the constraint first, since the sampler needs it.

    Returns:
        ``launched`` or ``vetoed``, as stored.

    """
    decision = "launched" if guard.allows(verdict) else "vetoed"
    violation = guard.violation(verdict)
    if _HAS_CONSTRAINTS and CONSTRAINT not in trial.constraints:
        _persistently(lambda: trial.set_constraint(CONSTRAINT, violation))
    attributes = {
        DECISION: decision,
        VERDICT: verdict.state.value,
        VIOLATION: violation,
        ESTIMATE: verdict.peak_bytes,
        LIMIT: verdict.limit_bytes,
        REASON: verdict.reason,
    }
    for name, value in attributes.items():
        _set_attr(trial, name, value)
    return decision


def _set_attr(trial: Any, name: str, value: Any) -> None:
    _persistently(lambda: trial.set_user_attr(name, value))


def _persistently(write: Callable[[], None]) -> None:
    """Write to a storage that others may have locked; what cannot be written must not end the study."""
    for attempt in range(_WRITE_ATTEMPTS):
        try:
            write()
        except optuna.exceptions.StorageInternalError:
            if attempt == _WRITE_ATTEMPTS - 1:
                logger.warning("the storage is locked; the memory verdict of a trial is not stored", exc_info=True)
            else:
                time.sleep(0.1 * 4**attempt)
        else:
            return


def _ranges(trial: BaseTrial, params: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the ranges of the continuous parameters that the workload gets as they were suggested."""
    suggested = trial.params
    return {
        name: (distribution.low, distribution.high)
        for name, distribution in trial.distributions.items()
        if isinstance(distribution, FloatDistribution) and name in params and params[name] == suggested.get(name)
    }


def _decision(trial: FrozenTrial) -> str | None:
    return cast("str | None", trial.user_attrs.get(DECISION))


def _launched(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    return [trial for trial in trials if _decision(trial) == "launched"]


def _worst_values(study: Study) -> list[float]:
    """Return the worst value seen in each direction, which distorts no surrogate; zero before there is one."""
    feasible = [
        trial
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if _decision(trial) != "vetoed" and trial.values is not None
    ]
    return [
        (max if direction is StudyDirection.MINIMIZE else min)(
            (trial.values[index] for trial in feasible), default=0.0
        )
        for index, direction in enumerate(study.directions)
    ]


def _ask(study: Study, space: Space) -> tuple[Trial, Mapping[str, Any]]:
    if callable(space):
        trial = study.ask()
        return trial, space(trial)
    trial = study.ask(fixed_distributions=dict(space))
    return trial, trial.params


def _tell_pruned(study: Study, trial: Trial) -> FrozenTrial:
    try:
        return study.tell(trial, state=TrialState.PRUNED)
    except RuntimeError:
        # Grids stop the study at their last point, which Optuna allows within optimize() only;
        # the trial has been told by then.
        return study.trials[trial.number]


def _is_exhausted(study: Study) -> bool:
    exhausted = getattr(study.sampler, "is_exhausted", None)
    return bool(exhausted(study)) if callable(exhausted) else False


def _is_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error).lower()


def _imported_torch() -> Any:
    """Return torch if the program uses it with a GPU; it is not imported for this."""
    import sys

    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


__all__ = [
    "FittingTrials",
    "LaunchBudget",
    "MemoryConstraint",
    "MemoryPruner",
    "MemoryVeto",
    "ask_fitting",
    "distributions_of",
    "memory_constraints",
    "record_outcome",
    "space_of",
    "store_verdict",
]
