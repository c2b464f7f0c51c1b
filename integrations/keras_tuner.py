"""KerasTuner: models that do not fit are skipped by bytes, and the search goes on.

::

    tuner = keras_tuner.RandomSearch(fitting(build_model, guard), objective="val_loss", max_trials=20)
    skip_oversized(tuner, guard)
    tuner.search(...)

KerasTuner's own ``max_model_size`` counts parameters and knows neither batch nor optimizer, and three
skipped models in a row end its search. `skip_oversized` asks the oracle again before a trial is made, so
that a veto counts neither as a failure nor as a trial. `fitting` is the second line: it judges
hyperparameters that a build function registers only while it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from dnnmem_tune.decisions.verdict import Verdict, VerdictState
from dnnmem_tune.errors import MissingPackageError
from dnnmem_tune.guard import MemoryGuard

try:
    import keras_tuner
except ImportError as error:
    raise MissingPackageError(
        f"the KerasTuner integration needs the package 'keras_tuner', which cannot be imported ({error}); "
        'run pip install "dnnmem-tune[keras-tuner]"'
    ) from error

logger = logging.getLogger(__name__)


class OversizedModelError(keras_tuner.errors.FailedTrialError):  # type: ignore[misc]  # it has no annotations
    """A model that does not fit the GPU; KerasTuner marks the trial as failed and does not retry it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"not trained: {verdict.reason}")
        self.verdict = verdict


def fitting(build: Callable[[Any], Any], guard: MemoryGuard) -> Callable[[Any], Any]:
    """Return the build function, refusing models that do not fit.

    Known hyperparameters are judged before anything is built; those that appear while the model is
    built, after that and before it is trained. A batch size that is not among them belongs into
    ``params`` of the guard.

    Args:
        build: Function from ``hp`` to a model.
        guard: What judges.

    """

    def build_fitting(hp: Any) -> Any:
        # Without values KerasTuner is looking for the search space: it builds the defaults and trains nothing.
        finding_space = not hp.values
        before = guard.check(hp.values)
        if before.state is VerdictState.EXCEEDS:
            raise OversizedModelError(before)
        model = build(hp)
        after = guard.check(hp.values)
        if not finding_space and not guard.allows(after):
            raise OversizedModelError(after)
        return model

    return build_fitting


def skip_oversized(tuner: Any, guard: MemoryGuard, *, max_tries: int = 1000) -> list[dict[str, Any]]:
    """Let a tuner's oracle propose again what does not fit, before it becomes a trial.

    Args:
        tuner: Any KerasTuner tuner; its oracle is changed.
        guard: What judges.
        max_tries: Proposals for one trial before the search is stopped.

    Returns:
        A list that fills with the hyperparameters that were skipped.

    """
    populate = tuner.oracle.populate_space
    skipped: list[dict[str, Any]] = []

    def populate_fitting(trial_id: str) -> Mapping[str, Any]:
        for _ in range(max_tries):
            response: Mapping[str, Any] = populate(trial_id)
            values = response.get("values")
            if not values or guard.allows(verdict := guard.check(values)):
                return response
            if verdict.state is VerdictState.UNKNOWN:
                return response  # Nothing is registered yet; the build function judges.
            if values not in skipped:
                skipped.append(dict(values))
            logger.info("not trained: %s %s", values, verdict.reason)
        logger.warning("%d proposals in a row do not fit; the search ends", max_tries)
        return {"status": keras_tuner.engine.trial.TrialStatus.STOPPED, "values": None}

    tuner.oracle.populate_space = populate_fitting
    return skipped
