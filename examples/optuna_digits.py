"""An Optuna study that launches nothing too large for a card of 1 GiB.

Run it: ``python examples/optuna_digits.py``. It needs no GPU and under a minute, and
``pip install "dnnmem-tune[torch,optuna]" scikit-learn``.
"""

from __future__ import annotations

import argparse

import digits
import optuna

from dnnmem_tune import MemoryGuard
from dnnmem_tune.integrations.optuna import LaunchBudget, MemoryConstraint
from dnnmem_tune.units import format_bytes


def main(launched: int) -> optuna.Study:
    """Run the study until ``launched`` trials have been launched, and print what became of each."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    budget = LaunchBudget(launched, vetoes_in_a_row=100)
    with MemoryGuard(digits.build, gpu=digits.GPU) as guard:
        constraint = MemoryConstraint(guard, budget=budget)

        def objective(trial: optuna.Trial) -> float:
            params = {
                "batch_size": trial.suggest_categorical("batch_size", [32, 128, 512, 65536]),
                "width": trial.suggest_categorical("width", [64, 256, 512, 8192]),
                "depth": trial.suggest_int("depth", 1, 6),
                "optimizer": trial.suggest_categorical("optimizer", ["adam", "sgd"]),
                "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
            }
            constraint.check(trial, params)  # a trial that cannot fit ends here
            *_, error = digits.train(**params)
            return error

        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
        study.optimize(objective, n_trials=20 * launched, callbacks=[report, budget])
        print(f"\nBest: error {study.best_value:.3f} with {study.best_params}")
        print(f"{guard.counts.num_traces} traces for {len(study.trials)} trials.", end=" ")
        print(", ".join(f"{name}: {status}" for name, status in guard.inert_parameters().items()))
    return study


def report(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    """Print whether a trial was launched, and why not."""
    attributes = trial.user_attrs
    outcome = f"error {trial.value:.3f}" if trial.value is not None else attributes["gpu_memory_reason"]
    peak = format_bytes(attributes["gpu_memory_estimate"])
    print(f"{trial.number:3d} {attributes['gpu_memory_decision']:8s} {peak:>10s}  {outcome}  {trial.params}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launched", type=int, default=8, help="trials to launch; vetoed ones do not count")
    main(parser.parse_args().launched)
