"""What a veto should be told to a sampler: the table behind the advice of ``integrations/optuna.py``.

    python benchmarks/optuna_vetoes.py

Searches for a transformer of which a part of the space, or almost all of it, does not fit. The objective
is best at the limit, as larger models usually are. A veto is told to the study as

* ``fail``: the out-of-memory error that was caught (``study.optimize(catch=...)``);
* ``pruned``: ``TrialPruned`` and nothing else;
* ``penalty``: completed, with a value worse than any that is measured;
* ``constraint``: pruned, with the constraint of ``MemoryConstraint``;
* ``complete``: completed with the constraint and the worst value so far, ``MemoryConstraint(tell="complete")``.

Printed are, as means over the seeds, the asks that the wanted launches took, the launches, and the best value
(lower is better). Memory is a formula here, so that only the samplers are compared.
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import TrialState

from dnnmem_tune.guard import FormulaTracers, MemoryGuard
from dnnmem_tune.integrations.optuna import MemoryConstraint
from dnnmem_tune.units import GIB, MIB

MODES = ("fail", "pruned", "penalty", "constraint", "complete")
SAMPLERS: Mapping[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "TPE": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "NSGA-II": lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=20),
}
PENALTY = 0.0
"""Worse than any loss of the space."""


@dataclass(frozen=True)
class Outcome:
    """What one study came to."""

    asked: int

    launched: int

    best: float


def peak(params: Mapping[str, Any], batch_size: int) -> int:
    """Return weights, gradients and Adam's state, and the activations of 128 tokens, in bytes."""
    width, depth = int(params["width"]), int(params["depth"])
    return 600 * MIB + depth * 12 * width**2 * 16 + batch_size * depth * width * 128 * 34


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    """Return a configuration."""
    return {
        "width": trial.suggest_int("width", 128, 4096, step=128),
        "depth": trial.suggest_int("depth", 2, 48),
        "batch_size": trial.suggest_categorical("batch_size", [8, 16, 32, 64, 128, 256, 512]),
        "lr": trial.suggest_float("lr", 1e-5, 1e-1, log=True),
    }


def loss(params: Mapping[str, Any]) -> float:
    """Return a loss that falls with the size of the model and has an optimum in batch and rate."""
    size = math.log2(params["width"]) + 0.7 * math.log2(params["depth"])
    return -(size - 0.1 * abs(math.log2(params["batch_size"]) - 6) - abs(math.log10(params["lr"]) + 3.5))


def run(
    mode: str, sampler: optuna.samplers.BaseSampler, limit_bytes: int, launches: int, max_asks: int
) -> Outcome:
    """Search until so many trials have been launched."""
    guard = MemoryGuard(tracers=[FormulaTracers(peak, limit_bytes)])
    constraint = MemoryConstraint(guard, tell="complete" if mode == "complete" else "pruned")
    study = optuna.create_study(sampler=sampler)
    launched = asked = 0

    def objective(trial: optuna.Trial) -> float:
        nonlocal launched
        params = suggest(trial)
        constraint.check(trial, params)
        launched += 1
        return loss(params)

    guarded = constraint.guarded(objective)
    while launched < launches and asked < max_asks:
        asked += 1
        if mode in ("constraint", "complete"):
            study.optimize(guarded, n_trials=1)
            continue
        trial = study.ask()
        params = suggest(trial)
        if not guard.allows(guard.check(params)):
            if mode == "penalty":
                study.tell(trial, PENALTY)
            else:
                study.tell(trial, state=TrialState.FAIL if mode == "fail" else TrialState.PRUNED)
            continue
        launched += 1
        study.tell(trial, loss(params))
    values = [
        trial.value for trial in study.trials if trial.state is TrialState.COMPLETE and trial.value is not None
    ]
    return Outcome(asked, launched, min(values, default=math.nan))


def main(limits: list[float], seeds: int, launches: int, max_asks: int) -> None:
    """Print the table."""
    print(
        f"{launches} launches wanted, at most {max_asks} asks, mean of {seeds} seeds, optuna {optuna.__version__}"
    )
    print(f"{'limit':>9s}  {'sampler':8s} {'veto told as':12s} {'asks':>7s} {'launched':>9s} {'best':>8s}")
    for limit in limits:
        for name, make in SAMPLERS.items():
            for mode in MODES:
                outcomes = [run(mode, make(seed), int(limit * GIB), launches, max_asks) for seed in range(seeds)]
                asks = statistics.mean(outcome.asked for outcome in outcomes)
                launched = statistics.mean(outcome.launched for outcome in outcomes)
                best = statistics.mean(outcome.best for outcome in outcomes)
                print(
                    f"{limit:5.1f} GiB  {name:8s} {mode:12s} {asks:7.1f} {launched:9.1f} {best:8.3f}", flush=True
                )


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    parser = argparse.ArgumentParser(description="What a veto should be told to a sampler.")
    parser.add_argument("--limits", type=float, nargs="+", default=[16.0, 3.0, 1.5], metavar="GIB")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--launches", type=int, default=50)
    parser.add_argument("--max-asks", type=int, default=1000)
    arguments = parser.parse_args()
    main(arguments.limits, arguments.seeds, arguments.launches, arguments.max_asks)
