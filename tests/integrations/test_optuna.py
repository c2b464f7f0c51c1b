"""The Optuna integration on the real Optuna, releases 4 and 5."""

import math
import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

optuna = pytest.importorskip("optuna")

from dnnmem_tune.decisions.space import Choices, Numbers  # noqa: E402
from dnnmem_tune.decisions.verdict import VerdictState  # noqa: E402
from dnnmem_tune.errors import UsageError  # noqa: E402
from dnnmem_tune.guard import FormulaTracers, MemoryGuard  # noqa: E402
from dnnmem_tune.guard.survey import survey  # noqa: E402
from dnnmem_tune.integrations.optuna import (  # noqa: E402
    LaunchBudget,
    MemoryConstraint,
    MemoryPruner,
    MemoryVeto,
    ask_fitting,
    distributions_of,
    memory_constraints,
    record_outcome,
    space_of,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore:.*n_jobs.*:FutureWarning"),
]

OPTUNA_5 = int(optuna.__version__.split(".")[0]) >= 5
optuna_5_only = pytest.mark.skipif(not OPTUNA_5, reason="constraints of trials came with Optuna 5")
State = optuna.trial.TrialState
LIMIT = 16 << 30


def transformer_peak(params: Mapping[str, Any], batch_size: int) -> int:
    """Weights, gradients and Adam state; activations of 128 tokens."""
    width, depth = int(params["width"]), int(params["depth"])
    return (600 << 20) + depth * 12 * width**2 * 16 + batch_size * depth * width * 128 * 34


def make_guard(limit: int = LIMIT, peak: Any = transformer_peak, **options: Any) -> MemoryGuard:
    """Return a guard over a formula; the batch size is called ``batch``."""
    return MemoryGuard(tracers=[FormulaTracers(peak, limit)], batch_param="batch", **options)


def suggest(trial: Any) -> dict[str, Any]:
    """Suggest a configuration of which about half do not fit 16 GiB."""
    return {
        "width": trial.suggest_int("width", 128, 4096, step=128),
        "depth": trial.suggest_int("depth", 2, 48),
        "batch": trial.suggest_categorical("batch", [8, 16, 32, 64, 128, 256, 512]),
        "lr": trial.suggest_float("lr", 1e-5, 1e-1, log=True),
    }


def loss(params: Mapping[str, Any]) -> float:
    """Larger models are better, so the optimum lies at the limit."""
    size = math.log2(params["width"]) + 0.7 * math.log2(params["depth"])
    return -(size - 0.1 * abs(math.log2(params["batch"]) - 6) - abs(math.log10(params["lr"]) + 3.5))


def tpe(seed: int = 0, **options: Any) -> Any:
    """Return a TPE sampler that uses the constraint, on both releases."""
    if not OPTUNA_5:
        options["constraints_func"] = memory_constraints
    return optuna.samplers.TPESampler(seed=seed, **options)


def objective_of(constraint: MemoryConstraint, launched: list[dict[str, Any]]) -> Callable[[Any], float]:
    """Return an objective that notes what it launched."""

    def objective(trial: Any) -> float:
        params = suggest(trial)
        constraint.check(trial, params)
        launched.append(params)
        return loss(params)

    return objective


def really_fits(params: Mapping[str, Any], limit: int = LIMIT) -> bool:
    """Return what a full estimate of its own says."""
    rest = {name: value for name, value in params.items() if name != "batch"}
    return transformer_peak(rest, params["batch"]) <= limit


def test_two_hundred_trials_launch_nothing_that_cannot_fit_and_veto_nothing_that_can() -> None:
    """Each launched and each vetoed trial is compared with a full estimate of its own."""
    guard, launched = make_guard(), list[dict[str, Any]]()
    budget = LaunchBudget(200)
    constraint = MemoryConstraint(guard, budget=budget)
    study = optuna.create_study(sampler=tpe())

    study.optimize(objective_of(constraint, launched), n_trials=2000, callbacks=[budget])

    vetoed = [trial for trial in study.trials if trial.user_attrs["gpu_memory_decision"] == "vetoed"]
    assert len(launched) == 200
    assert all(really_fits(params) for params in launched)
    assert vetoed
    assert not any(really_fits(trial.params) for trial in vetoed)


def test_a_vetoed_trial_is_pruned_with_constraint_and_reason() -> None:
    """The sampler gets how far it is above the limit, the user what would fit."""
    study = optuna.create_study(sampler=tpe())
    study.enqueue_trial({"width": 4096, "depth": 48, "batch": 512, "lr": 1e-3})

    study.optimize(objective_of(MemoryConstraint(make_guard()), []), n_trials=1)

    (trial,) = study.trials
    peak = transformer_peak({"width": 4096, "depth": 48}, 512)
    assert trial.state is State.PRUNED
    assert trial.user_attrs["gpu_memory_violation"] == pytest.approx(peak / LIMIT - 1)
    assert trial.user_attrs["gpu_memory_estimate"] == peak
    assert trial.user_attrs["gpu_memory_limit"] == LIMIT
    assert trial.user_attrs["gpu_memory_verdict"] == "exceeds"
    assert "above the limit of 16.00 GiB" in trial.user_attrs["gpu_memory_reason"]
    assert trial.user_attrs["gpu_memory_largest_batch"] == 0
    assert memory_constraints(trial) == (trial.user_attrs["gpu_memory_violation"],)


@optuna_5_only
def test_every_trial_gets_the_constraint() -> None:
    """GP refuses a study in which trials have different numbers of constraints."""
    study = optuna.create_study(sampler=tpe())
    study.optimize(objective_of(MemoryConstraint(make_guard()), []), n_trials=30)

    assert all(set(trial.constraints) == {"gpu_memory"} for trial in study.trials)
    assert {trial.constraints["gpu_memory"] <= 0 for trial in study.trials} == {True, False}
    for trial in study.trials:
        assert (trial.constraints["gpu_memory"] <= 0) is (trial.state is State.COMPLETE)


@optuna_5_only
def test_checking_a_trial_twice_is_harmless() -> None:
    """Optuna warns about a second constraint of the same name; warnings are errors here."""
    constraint = MemoryConstraint(make_guard())

    def objective(trial: Any) -> float:
        params = suggest(trial)
        constraint.check(trial, params)
        constraint.check(trial, params)
        return loss(params)

    study = optuna.create_study(sampler=tpe())
    study.enqueue_trial({"width": 128, "depth": 2, "batch": 8, "lr": 1e-3})
    study.optimize(objective, n_trials=1)

    assert study.trials[0].state is State.COMPLETE


@pytest.mark.parametrize("limit_gib", [3.0, 1.5])
def test_tpe_needs_at_most_110_asks_for_50_launches_on_a_tight_space(limit_gib: float) -> None:
    """The mean of six seeds; a veto told as FAIL needs over 3,000, pruned without a constraint about 200."""
    limit = int(limit_gib * (1 << 30))
    asks = []
    for seed in range(6):
        budget = LaunchBudget(50)
        constraint = MemoryConstraint(make_guard(limit), budget=budget)
        study = optuna.create_study(sampler=tpe(seed))
        study.optimize(objective_of(constraint, []), n_trials=400, callbacks=[budget])
        asks.append(len(study.trials))

    assert sum(asks) / len(asks) <= (110 if limit_gib == 3.0 and OPTUNA_5 else 130)


def test_multi_objective_studies_prune_and_keep_their_front_feasible() -> None:
    """`should_prune` raises there; raising TrialPruned works, and infeasible trials never enter the front."""
    constraint = MemoryConstraint(make_guard())

    def objective(trial: Any) -> tuple[float, float]:
        params = suggest(trial)
        constraint.check(trial, params)
        return loss(params), params["width"] * params["depth"]

    study = optuna.create_study(directions=["minimize", "minimize"], sampler=tpe())
    study.optimize(objective, n_trials=60)

    states = {trial.state for trial in study.trials}
    assert states == {State.PRUNED, State.COMPLETE}
    assert all(really_fits(trial.params) for trial in study.best_trials)


def test_nsga2_learns_from_vetoes_that_complete() -> None:
    """NSGA-II ignores pruned trials; told as complete with the constraint, it spends fewer asks on vetoes."""

    def num_vetoed(tell: Any) -> int:
        options: dict[str, Any] = {} if OPTUNA_5 else {"constraints_func": memory_constraints}
        sampler = optuna.samplers.NSGAIISampler(seed=1, population_size=20, **options)
        constraint = MemoryConstraint(make_guard(3 << 30), tell=tell)
        study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)

        def objective(trial: Any) -> tuple[float, float]:
            params = suggest(trial)
            constraint.check(trial, params)
            return loss(params), float(params["depth"])

        study.optimize(constraint.guarded(objective), n_trials=200)
        states = {trial.state for trial in study.trials}
        assert states == ({State.COMPLETE} if tell == "complete" else {State.COMPLETE, State.PRUNED})
        assert all(really_fits(trial.params, 3 << 30) for trial in study.best_trials)
        return sum(trial.user_attrs["gpu_memory_decision"] == "vetoed" for trial in study.trials)

    assert num_vetoed("complete") < num_vetoed("pruned")


def test_complete_mode_never_makes_a_vetoed_trial_the_best() -> None:
    """It completes with the worst value of the trials that ran, which is finite from the first trial on."""
    constraint = MemoryConstraint(make_guard(), tell="complete")
    study = optuna.create_study(direction="maximize", sampler=tpe())
    study.enqueue_trial({"width": 4096, "depth": 48, "batch": 512, "lr": 1e-3})
    study.enqueue_trial({"width": 128, "depth": 2, "batch": 8, "lr": 1e-3})
    study.enqueue_trial({"width": 4096, "depth": 40, "batch": 512, "lr": 1e-3})

    def objective(trial: Any) -> float:
        params = suggest(trial)
        constraint.check(trial, params)
        return -7.0

    study.optimize(constraint.guarded(objective), n_trials=3)

    assert [trial.value for trial in study.trials] == [0.0, -7.0, -7.0]
    if OPTUNA_5:
        assert study.best_trial.number == 1


@optuna_5_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_gp_sampler_runs_with_complete_vetoes() -> None:
    """GP needs the same constraints on every trial and finite values."""
    pytest.importorskip("torch")
    constraint = MemoryConstraint(make_guard(), tell="complete")
    study = optuna.create_study(sampler=optuna.samplers.GPSampler(seed=0, n_startup_trials=4))
    launched: list[dict[str, Any]] = []

    study.optimize(constraint.guarded(objective_of(constraint, launched)), n_trials=7)

    assert all(trial.state is State.COMPLETE for trial in study.trials)
    assert all(really_fits(params) for params in launched)
    assert really_fits(study.best_trial.params)


@pytest.mark.filterwarnings("ignore:Constraints have been set, but CmaEsSampler will not use them:UserWarning")
def test_cma_es_runs_with_pruned_vetoes() -> None:
    """It uses no constraint, and says so; vetoes are pruned trials to it."""
    pytest.importorskip("cmaes")
    study = optuna.create_study(sampler=optuna.samplers.CmaEsSampler(seed=0))
    launched: list[dict[str, Any]] = []

    study.optimize(objective_of(MemoryConstraint(make_guard()), launched), n_trials=30)

    assert len(study.trials) == 30
    assert all(really_fits(params) for params in launched)


def test_grid_visits_each_point_once_and_launches_those_that_fit() -> None:
    """A veto counts as a visit: the grid ends, and no point is proposed again."""
    grid: dict[str, list[Any]] = {"width": [128, 4096], "depth": [2, 48], "batch": [8, 512], "lr": [1e-3]}
    launched: list[dict[str, Any]] = []
    study = optuna.create_study(sampler=optuna.samplers.GridSampler(grid, seed=0))

    study.optimize(objective_of(MemoryConstraint(make_guard()), launched))

    assert len(study.trials) == 8
    assert len(launched) == sum(
        really_fits({"width": width, "depth": depth, "batch": batch})
        for width in grid["width"]
        for depth in grid["depth"]
        for batch in grid["batch"]
    )


def test_brute_force_ends_after_every_point() -> None:
    """A veto counts as a visit here too."""
    launched: list[int] = []
    constraint = MemoryConstraint(make_guard(1 << 30, lambda params, batch: batch << 20))

    def objective(trial: Any) -> float:
        batch = trial.suggest_categorical("batch", [256, 512, 1024, 2048])
        constraint.check(trial)
        launched.append(batch)
        return float(batch)

    study = optuna.create_study(sampler=optuna.samplers.BruteForceSampler(seed=0))
    study.optimize(objective)

    assert sorted(launched) == [256, 512, 1024]
    assert len(study.trials) == 4


def test_hyperband_keeps_its_brackets_and_prunes_what_fits_by_its_reports() -> None:
    """Vetoed trials report nothing, which must not disturb the brackets."""
    constraint = MemoryConstraint(make_guard())

    def objective(trial: Any) -> float:
        params = suggest(trial)
        constraint.check(trial, params)
        for epoch in range(9):
            trial.report(loss(params) / (epoch + 1), epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss(params)

    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=9, reduction_factor=3)
    study = optuna.create_study(sampler=tpe(n_startup_trials=5), pruner=pruner)
    study.optimize(objective, n_trials=40)

    launched = [trial for trial in study.trials if trial.user_attrs["gpu_memory_decision"] == "launched"]
    assert all(really_fits(trial.params) for trial in launched)
    assert any(trial.state is State.PRUNED for trial in launched)
    assert any(trial.state is State.COMPLETE for trial in launched)


@pytest.mark.parametrize(
    "inner",
    [None, optuna.pruners.MedianPruner(n_startup_trials=0), optuna.pruners.HyperbandPruner(max_resource=9)],
)
def test_memory_pruner_vetoes_before_the_first_report(inner: Any) -> None:
    """For code that only calls should_prune. Samplers look at a pruner's type, so the inner one's is kept."""
    trained: list[dict[str, Any]] = []

    def objective(trial: Any) -> float:
        params = suggest(trial)
        if trial.should_prune():
            raise optuna.TrialPruned
        trained.append(params)
        for epoch in range(9):
            trial.report(loss(params) / (epoch + 1), epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss(params)

    pruner = MemoryPruner(make_guard(), inner)
    study = optuna.create_study(sampler=tpe(), pruner=pruner)
    study.optimize(objective, n_trials=40)

    assert isinstance(pruner, MemoryPruner)
    assert inner is None or isinstance(pruner, type(inner))
    assert 0 < len(trained) < 40
    assert all(really_fits(params) for params in trained)
    vetoed = [trial for trial in study.trials if trial.user_attrs["gpu_memory_decision"] == "vetoed"]
    assert vetoed
    if OPTUNA_5:
        assert all(trial.constraints["gpu_memory"] > 0 for trial in vetoed)


def test_memory_pruner_can_be_pickled() -> None:
    """Studies travel to worker processes with their pruner."""
    pruner = MemoryPruner(make_guard(), optuna.pruners.HyperbandPruner(max_resource=9))

    copy = pickle.loads(pickle.dumps(pruner))

    assert isinstance(copy, optuna.pruners.HyperbandPruner)
    assert isinstance(copy, MemoryPruner)


def test_threads_of_one_study_trace_each_configuration_once() -> None:
    """n_jobs workers share the guard."""
    guard = make_guard()
    launched: list[dict[str, Any]] = []
    constraint = MemoryConstraint(guard)
    lock = threading.Lock()

    def objective(trial: Any) -> float:
        params = {"width": trial.suggest_categorical("width", [128, 4096]), "depth": 48, "batch": 8, "lr": 1e-3}
        constraint.check(trial, params)
        with lock:
            launched.append(params)
        time.sleep(0.01)
        return loss(params)

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=40, n_jobs=4)

    assert guard.counts.num_traces == 2
    assert len(study.trials) == 40
    assert all(really_fits(params) for params in launched)


def _work(url: str, cache_dir: str, seed: int) -> None:
    budget = LaunchBudget(8)
    constraint = MemoryConstraint(make_guard(cache_dir=cache_dir), budget=budget)
    study = optuna.load_study(study_name="shared", storage=url, sampler=tpe(seed, n_startup_trials=4))

    def objective(trial: Any) -> float:
        params = suggest(trial)
        constraint.check(trial, params)
        time.sleep(0.05)
        return loss(params)

    study.optimize(objective, n_trials=40, callbacks=[budget])


def test_processes_on_one_storage_launch_no_more_than_the_budget(tmp_path: Path) -> None:
    """MaxTrialsCallback lets each of m workers run one trial too many, and never stops if all are pruned."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    optuna.create_study(study_name="shared", storage=url)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_work, args=(url, str(tmp_path / "cache"), seed)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)

    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    trials = optuna.load_study(study_name="shared", storage=url).trials
    launched = [trial for trial in trials if trial.user_attrs["gpu_memory_decision"] == "launched"]
    assert len(launched) == 8
    assert all(trial.state is State.COMPLETE and really_fits(trial.params) for trial in launched)


def test_a_study_in_which_nothing_fits_ends() -> None:
    """`n_trials` aside, only the count of vetoes can end it."""
    budget = LaunchBudget(50, vetoes_in_a_row=7)
    study = optuna.create_study(sampler=tpe())

    study.optimize(objective_of(MemoryConstraint(make_guard(1 << 20)), []), n_trials=100, callbacks=[budget])

    assert len(study.trials) == 7


@pytest.mark.parametrize("as_function", [False, True])
def test_ask_fitting_returns_trials_to_launch_at_once(as_function: bool) -> None:
    """For launchers of their own: n trials that fit, vetoed ones told as pruned."""
    space = {
        "width": optuna.distributions.IntDistribution(128, 4096, step=128),
        "depth": optuna.distributions.IntDistribution(2, 48),
        "batch": optuna.distributions.CategoricalDistribution([8, 64, 512]),
    }

    study = optuna.create_study(sampler=tpe())
    constraint = MemoryConstraint(make_guard())
    found = ask_fitting(study, suggest if as_function else space, 6, constraint)
    for trial in found.trials:
        study.tell(trial, 1.0)

    assert len(found.trials) == 6
    assert all(really_fits(params) for params in found.params)
    assert found.num_asked == 6 + len(found.vetoed)
    assert all(trial.state is State.PRUNED for trial in found.vetoed)


def test_ask_fitting_gives_up_where_nothing_fits_and_at_the_end_of_a_grid() -> None:
    """A loop for launchers must end."""
    constraint = MemoryConstraint(make_guard(1 << 20))
    space = {
        "width": optuna.distributions.IntDistribution(128, 256, step=128),
        "depth": optuna.distributions.IntDistribution(2, 3),
        "batch": optuna.distributions.IntDistribution(8, 8),
    }
    grid = {"width": [128, 256], "depth": [2, 3], "batch": [8]}

    capped = ask_fitting(optuna.create_study(sampler=tpe()), space, 2, constraint, max_asks=5)
    study = optuna.create_study(sampler=optuna.samplers.GridSampler(grid, seed=0))
    exhausted = ask_fitting(study, space, 1, constraint)

    assert (capped.num_asked, len(capped.trials)) == (5, 0)
    assert (exhausted.num_asked, len(exhausted.trials)) == (4, 0)


def test_unknown_is_launched_with_a_reason_and_a_finite_constraint() -> None:
    """A build function that raises, a missing parameter: never a veto by default, and never NaN."""

    def broken(params: Mapping[str, Any], batch_size: int) -> int:
        raise ValueError("width must be divisible by heads")

    study = optuna.create_study(sampler=tpe())
    study.optimize(objective_of(MemoryConstraint(make_guard(peak=broken)), []), n_trials=15)

    assert all(trial.state is State.COMPLETE for trial in study.trials)
    assert all(trial.user_attrs["gpu_memory_violation"] == 0.0 for trial in study.trials)
    assert "width must be divisible by heads" in study.trials[0].user_attrs["gpu_memory_reason"]


def test_unknown_can_be_vetoed() -> None:
    """For cards on which a single out-of-memory error is worse than a trial lost."""
    constraint = MemoryConstraint(MemoryGuard(tracers=[], unknown="veto"))
    study = optuna.create_study(sampler=tpe())
    study.optimize(objective_of(constraint, []), n_trials=3)

    assert all(trial.state is State.PRUNED for trial in study.trials)
    assert study.trials[0].user_attrs["gpu_memory_reason"].startswith("no GPU is given")


def test_a_fixed_trial_can_be_judged() -> None:
    """Objectives are run again on their best parameters with a FixedTrial."""
    constraint = MemoryConstraint(make_guard())
    small = {"width": 128, "depth": 2, "batch": 8, "lr": 1e-3}

    assert objective_of(constraint, [])(optuna.trial.FixedTrial(small)) == loss(small)
    with pytest.raises(MemoryVeto, match=r"not launched: .* above the limit of 16\.00 GiB") as caught:
        objective_of(constraint, [])(optuna.trial.FixedTrial({**small, "width": 4096, "batch": 512}))
    assert caught.value.verdict.state is VerdictState.EXCEEDS


def test_a_real_out_of_memory_prunes_and_is_vetoed_from_then_on() -> None:
    """What the estimate missed is not launched a second time."""
    guard = make_guard()
    constraint = MemoryConstraint(guard)
    params = {"width": 128, "depth": 2, "batch": 8}
    runs = []

    def train_too_large_a_model() -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def objective(trial: Any) -> float:
        for name, value in params.items():
            trial.suggest_int(name, value, value)
        constraint.check(trial)
        with constraint.watch(trial):
            runs.append(trial.number)
            train_too_large_a_model()
        return 0.0

    study = optuna.create_study(sampler=tpe())
    study.optimize(objective, n_trials=3, callbacks=[record_outcome(guard)])

    assert runs == [0]
    assert [trial.state for trial in study.trials] == [State.PRUNED] * 3
    assert study.trials[0].user_attrs["gpu_memory_out_of_memory"] is True
    reason = study.trials[1].user_attrs["gpu_memory_reason"]
    assert reason == "ran out of memory at batch size 8 when it was launched"


def test_watch_lets_other_errors_through() -> None:
    """A bug in the training is no memory verdict."""
    constraint = MemoryConstraint(make_guard())
    with pytest.raises(RuntimeError, match="shapes do not match"), constraint.watch(optuna.trial.FixedTrial({})):
        raise RuntimeError("shapes do not match")


def test_a_measured_peak_is_kept_with_its_estimate() -> None:
    """What is needed to judge the estimates of a study."""
    guard = make_guard()
    constraint = MemoryConstraint(guard)

    def objective(trial: Any) -> float:
        params = suggest(trial)
        constraint.check(trial, params)
        trial.set_user_attr("gpu_memory_measured", 123)
        return 0.0

    study = optuna.create_study(sampler=tpe())
    study.enqueue_trial({"width": 128, "depth": 2, "batch": 8, "lr": 1e-3})
    study.optimize(objective, n_trials=1, callbacks=[record_outcome(guard)])

    (observation,) = guard.observations
    assert observation.measured_bytes == 123
    assert observation.estimated_bytes == transformer_peak({"width": 128, "depth": 2}, 8)


def test_a_locked_storage_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite refuses writers for a moment; the verdict still counts."""
    storage = optuna.storages.InMemoryStorage()
    write = storage.set_trial_user_attr
    failures: list[str] = []

    def locked_twice(trial_id: int, key: str, value: Any) -> None:
        if len(failures) < 2:
            failures.append(key)
            raise optuna.exceptions.StorageInternalError("database is locked")
        write(trial_id, key, value)

    monkeypatch.setattr(storage, "set_trial_user_attr", locked_twice)
    study = optuna.create_study(sampler=tpe(), storage=storage)
    study.optimize(objective_of(MemoryConstraint(make_guard()), []), n_trials=2)

    assert len(failures) == 2
    assert all("gpu_memory_decision" in trial.user_attrs for trial in study.trials)


def test_a_storage_that_stays_locked_costs_the_attributes_and_not_the_study(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Vetoes still hold."""
    storage = optuna.storages.InMemoryStorage()

    def locked(*_arguments: Any) -> None:
        raise optuna.exceptions.StorageInternalError("database is locked")

    monkeypatch.setattr(storage, "set_trial_user_attr", locked)
    monkeypatch.setattr("dnnmem_tune.integrations.optuna.time.sleep", lambda _seconds: None)
    study = optuna.create_study(sampler=tpe(), storage=storage)
    launched: list[dict[str, Any]] = []
    study.optimize(objective_of(MemoryConstraint(make_guard()), launched), n_trials=10)

    assert len(study.trials) == 10
    assert all(really_fits(params) for params in launched)
    assert "the storage is locked; the memory verdict of a trial is not stored" in caplog.text


def test_learning_rate_needs_no_trace_of_its_own() -> None:
    """The constraint hands the ranges of the study to the guard, so two probes settle every rate."""
    guard = make_guard()
    constraint = MemoryConstraint(guard)

    def objective(trial: Any) -> float:
        params = {
            "width": trial.suggest_categorical("width", [128, 256, 512, 1024]),
            "depth": trial.suggest_categorical("depth", [2, 4, 8, 12, 24]),
            "batch": trial.suggest_int("batch", 8, 512),
            "lr": trial.suggest_float("lr", 1e-5, 1e-1, log=True),
        }
        constraint.check(trial, params)
        return loss(params)

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=400)

    # 20 architectures, 2 probes at the ends of the learning rate, and the checks of what was concluded.
    assert guard.counts.num_traces <= 20 + 2 + 3
    assert guard.inert_parameters()["lr"] == "inert"


def test_a_space_of_distributions_is_judged_before_the_search() -> None:
    """By hand: of 4096 wide models not even the shallowest fits 2 GiB; the reduced space has none of them."""
    distributions = {
        "width": optuna.distributions.CategoricalDistribution([128, 4096]),
        "depth": optuna.distributions.IntDistribution(6, 28, step=2),
        "batch": optuna.distributions.IntDistribution(8, 64, log=True),
        "lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
    }
    space = space_of(distributions, batch_param="batch")
    report = survey(make_guard(2 << 30), space)

    assert space.parameters["depth"] == Numbers(low=6, high=28, step=2, whole=True)
    assert report.share_fitting == 0.5
    assert report.drivers[0].name == "width"
    assert report.reduced.parameters["width"] == Choices((128,))
    assert {driver.name for driver in report.drivers if driver.inert} == {"lr"}
    reduced = distributions_of(report.reduced)
    assert reduced == {**distributions, "width": optuna.distributions.CategoricalDistribution([128])}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MemoryConstraint(make_guard(), tell=cast(Any, "fail")),
            r'tell is "pruned" or "complete", got \'fail\'',
        ),
        (lambda: LaunchBudget(0), "LaunchBudget: launched must be a whole number of at least 1, got 0"),
        (
            lambda: LaunchBudget(1, vetoes_in_a_row=True),
            "vetoes_in_a_row must be a whole number of at least 1, got True",
        ),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(make: Callable[[], Any], message: str) -> None:
    """Before a study starts, not in its first trial."""
    with pytest.raises(UsageError, match=message):
        make()
