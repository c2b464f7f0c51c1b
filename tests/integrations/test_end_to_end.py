"""The guard and its hosts on the real estimator: traces of real workloads, on cards that are not there."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from dnnmem_tune import EstimationSession, MemoryGuard
from dnnmem_tune.decisions.space import Choices, Numbers, SearchSpace
from dnnmem_tune.decisions.verdict import VerdictState
from dnnmem_tune.guard.survey import survey

WORKLOADS = Path(__file__).with_name("workloads.py")
NETWORK = f"{WORKLOADS}:network"
SWEEP = f"{Path(__file__).parents[2] / 'examples' / 'transformer_sweep.py'}:build"
MIB = 1 << 20


@pytest.fixture(scope="module")
def guard() -> Iterator[MemoryGuard]:
    """One worker for the module; what it has traced stays known."""
    with MemoryGuard(NETWORK, gpu="1GiB") as shared:
        yield shared


@pytest.fixture(scope="module")
def reference() -> Iterator[EstimationSession]:
    """An estimator of its own, to compare with."""
    with EstimationSession(NETWORK) as session:
        yield session


def test_a_verdict_is_that_of_a_full_estimate(guard: MemoryGuard, reference: EstimationSession) -> None:
    """At batch sizes of which only the first was traced, and on both sides of the limit."""
    for batch_size in (8, 60, 1000, 2_000_000):
        verdict = guard.check({"width": 128, "batch_size": batch_size})
        assert verdict == reference.verdict(batch_size, "1GiB", {"width": 128})
    assert guard.check({"width": 128, "batch_size": 8}).state is VerdictState.FITS
    assert guard.check({"width": 128, "batch_size": 2_000_000}).state is VerdictState.EXCEEDS


def test_a_verdict_on_a_known_configuration_takes_milliseconds(guard: MemoryGuard) -> None:
    """The processor time of 100 batch sizes; the machine may be busy."""
    guard.check({"width": 128, "batch_size": 8})

    start = time.process_time()
    for batch_size in range(100, 200):
        guard.check({"width": 128, "batch_size": batch_size})

    assert (time.process_time() - start) / 100 < 0.005


def test_the_largest_batch_is_that_of_the_estimator(guard: MemoryGuard, reference: EstimationSession) -> None:
    """What would fit, for a configuration that does not."""
    largest = guard.largest_batch({"width": 128}).largest_batch
    assert largest is not None

    assert reference.estimate(largest, "1GiB", {"width": 128}).fits
    assert not reference.estimate(largest + 1, "1GiB", {"width": 128}).fits


def test_a_build_function_that_raises_is_unknown(guard: MemoryGuard) -> None:
    """The reason is the user's own, with the line."""
    verdict = guard.check({"width": 31, "batch_size": 8})

    assert verdict.state is VerdictState.UNKNOWN
    assert "the width must be even" in verdict.reason


def test_a_worker_that_dies_is_unknown_and_the_next_trace_works(guard: MemoryGuard) -> None:
    """A trace that is killed takes nothing with it."""
    dead = guard.check({"width": 64, "depth": 99, "batch_size": 8})

    assert dead.state is VerdictState.UNKNOWN
    assert "SIGKILL" in dead.reason
    assert guard.check({"width": 66, "batch_size": 8}).state is VerdictState.FITS


def test_a_parameter_that_the_workload_does_not_take_is_unknown_with_advice(guard: MemoryGuard) -> None:
    """Searches hold more than a build function takes."""
    verdict = guard.check({"width": 64, "epochs": 90, "batch_size": 8})

    assert verdict.state is VerdictState.UNKNOWN
    assert "'epochs'" in verdict.reason
    assert "pass ignore=[...] with its name to MemoryGuard" in verdict.reason


def test_a_study_of_a_thousand_trials_traces_twenty_architectures() -> None:
    """Under 2 % of what estimating each trial by itself takes; two further parameters are found to be inert."""
    optuna = pytest.importorskip("optuna")
    from dnnmem_tune.integrations.optuna import MemoryConstraint

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seconds = 0.0
    with MemoryGuard(NETWORK, gpu="1GiB") as guard:
        constraint = MemoryConstraint(guard)

        def objective(trial: Any) -> float:
            nonlocal seconds
            params = {
                "width": trial.suggest_categorical("width", [64, 128, 256, 512]),
                "depth": trial.suggest_categorical("depth", [2, 3, 4, 5, 6]),
                "batch_size": trial.suggest_int("batch_size", 8, 300_000, log=True),
                "lr": trial.suggest_float("lr", 1e-5, 1e-1, log=True),
                "dropout": trial.suggest_float("dropout", 0.05, 0.5),
            }
            start = time.perf_counter()
            try:
                constraint.check(trial, params)
            finally:
                seconds += time.perf_counter() - start
            return 0.0

        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.optimize(objective, n_trials=1000)
        counts = guard.counts

    start = time.perf_counter()
    with EstimationSession(NETWORK) as session:
        session.estimate(100, "1GiB", {"width": 64})
    alone = time.perf_counter() - start

    # 20 architectures, 2 ends of the ranges, and the checks of what was concluded.
    assert counts.num_traces <= 20 + 2 + 3
    assert guard.inert_parameters() == {
        "depth": "changes memory",
        "dropout": "inert",
        "lr": "inert",
        "width": "changes memory",
    }
    assert seconds < 0.02 * 1000 * alone


def test_a_sweep_that_ran_out_of_memory_launches_only_what_fits() -> None:
    """yoyodyne#178: its survey names the batch size, and random, grid and TPE agree with full estimates."""
    optuna = pytest.importorskip("optuna")
    from dnnmem_tune.integrations.optuna import (
        MemoryConstraint,
        distributions_of,
        memory_constraints,
    )

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    gpu = "4GiB"
    shallow = {"hidden": 1024, "encoder_layers": 1, "decoder_layers": 1}
    space = SearchSpace(
        parameters={
            "batch_size": Numbers(low=128, high=2048, step=384, whole=True),
            "embedding": Choices((64, 512)),
            "learning_rate": Numbers(low=1e-6, high=1e-2, log=True),
        }
    )
    grid = {"batch_size": [128, 896, 2048], "embedding": [64, 512], "learning_rate": [1e-3]}
    old = int(optuna.__version__.split(".")[0]) < 5
    samplers = {
        "random": optuna.samplers.RandomSampler(seed=0),
        "grid": optuna.samplers.GridSampler(grid, seed=0),
        "TPE": optuna.samplers.TPESampler(seed=0, **({"constraints_func": memory_constraints} if old else {})),
    }
    with (
        MemoryGuard(SWEEP, gpu=gpu, params=shallow) as guard,
        EstimationSession(SWEEP) as reference,
    ):
        report = survey(guard, space)
        assert 0.2 < report.share_fitting < 0.8
        assert report.drivers[0].name == "batch_size"
        assert [driver.name for driver in report.drivers if driver.inert] == ["learning_rate"]

        distributions = distributions_of(space)
        for name, sampler in samplers.items():
            constraint = MemoryConstraint(guard)
            study = optuna.create_study(sampler=sampler)
            for _ in range(25):
                trial = study.ask(distributions)
                try:
                    constraint.check(trial)
                except optuna.TrialPruned:
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                else:
                    study.tell(trial, 0.0)
                if name == "grid" and len(study.trials) == 5:
                    break
            for trial in study.trials:
                params = {key: value for key, value in trial.params.items() if key != "batch_size"}
                params = {**params, **shallow, "learning_rate": 1e-3}
                fits = reference.estimate(trial.params["batch_size"], gpu, params).fits
                decision = trial.user_attrs["gpu_memory_decision"]
                assert fits is (decision != "vetoed"), (name, trial.params)

        plan = guard.repair({"embedding": 512, "learning_rate": 1e-3, "batch_size": 2048})[0]
        assert plan.exact
        assert plan.steps > 1
        assert reference.estimate(plan.micro_batch, gpu, {"embedding": 512, "learning_rate": 1e-3, **shallow}).fits


def test_a_repeated_layer_is_counted_each_time() -> None:
    """torchinfo#144: PyTorch took 4044.00 MB where torchinfo counted the layer once, 130.03 MB."""
    with EstimationSession(f"{WORKLOADS}:repeated_layer") as session:
        estimate = session.estimate(10_240, "A100-80GB")

    assert estimate.peak_allocated_bytes == pytest.approx(4044.00 * MIB, rel=0.01)


def test_the_first_optimizer_step_is_part_of_the_peak() -> None:
    """rf-detr#1342: AdamW adds 389.3 MB to 128.4 MB of weights at its first step, from 314.5 to 703.8 MB."""
    with EstimationSession(f"{WORKLOADS}:adamw_step") as session:
        without = session.estimate(1, "A100-80GB", {"update": False}).peak_allocated_bytes
        peak = session.estimate(1, "A100-80GB").peak_allocated_bytes

    assert peak > 2 * without
    assert peak - without == pytest.approx(389.3e6, rel=0.05)
