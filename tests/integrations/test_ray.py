"""The Ray Tune integration on a real local Ray."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.tune")

from ray import tune  # noqa: E402
from ray.tune.schedulers import ASHAScheduler, HyperBandForBOHB, PopulationBasedTraining  # noqa: E402
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, Searcher  # noqa: E402

from dnnmem_tune.decisions.space import Choices, Numbers  # noqa: E402
from dnnmem_tune.errors import UsageError  # noqa: E402
from dnnmem_tune.guard import FormulaTracers, MemoryGuard  # noqa: E402
from dnnmem_tune.guard.survey import survey  # noqa: E402
from dnnmem_tune.integrations.ray import (  # noqa: E402
    MemoryFilteredGenerator,
    MemoryFilteredSearcher,
    explore_fitting,
    gpu_fraction,
    memory_filter,
    param_space_of,
    space_of,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LIMIT = 16_000
SPACE = {
    "width": tune.randint(32, 2048),
    "batch": tune.choice([8, 16, 32, 64, 128]),
    "lr": tune.loguniform(1e-5, 1e-1),
}


def peak(params: Mapping[str, Any], batch_size: int) -> int:
    """A configuration fits where width times batch is at most 16,000."""
    return int(params["width"]) * batch_size


def fits(config: Mapping[str, Any]) -> bool:
    """Return what a full estimate of its own says."""
    return peak(config, config["batch"]) <= LIMIT


def make_guard(**options: Any) -> MemoryGuard:
    """Return a guard over a formula; the batch size is called ``batch``."""
    return MemoryGuard(tracers=[FormulaTracers(peak, LIMIT)], batch_param="batch", **options)


def train(config: dict[str, Any]) -> None:
    """Report three epochs; larger models are better."""
    for epoch in range(3):
        tune.report({"loss": -math.log(peak(config, config["batch"])) / (epoch + 1), "epoch": epoch})


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    """One Ray for the module; a GPU is a number to its scheduler."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Run a search and return its results."""

    def fit(
        search_alg: Any,
        space: Mapping[str, Any] = SPACE,
        *,
        num_samples: int = 4,
        trainable: Any = train,
        **options: Any,
    ) -> Any:
        tuner = tune.Tuner(
            trainable,
            param_space=dict(space),
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                search_alg=search_alg,
                num_samples=num_samples,
                reuse_actors=True,
                **options,
            ),
            run_config=tune.RunConfig(verbose=0, storage_path=str(tmp_path), name="search"),
        )
        return tuner.fit()

    return fit


def configs(results: Any) -> list[dict[str, Any]]:
    """Return what was launched, and that none of it failed."""
    assert results.num_errors == 0
    return [result.config for result in results]


def test_grid_launches_exactly_the_points_that_fit(run: Callable[..., Any]) -> None:
    """A point of a grid is visited or vetoed; none is replaced, none is lost."""
    grid = {"width": tune.grid_search([64, 256, 1024]), "batch": tune.grid_search([8, 32, 128]), "lr": 0.1}
    search = memory_filter(None, make_guard())

    launched = configs(run(search, grid, num_samples=1))

    expected = {(width, batch) for width in (64, 256, 1024) for batch in (8, 32, 128) if width * batch <= LIMIT}
    assert {(config["width"], config["batch"]) for config in launched} == expected
    assert isinstance(search, MemoryFilteredGenerator)
    assert len(launched) == len(expected) == 6
    assert len(search.vetoed) == 3
    assert not any(fits(veto.config) for veto in search.vetoed)
    assert "above the limit" in search.vetoed[0].verdict.reason


@pytest.mark.parametrize("top_up", [True, False])
def test_random_search_is_topped_up(run: Callable[..., Any], top_up: bool) -> None:
    """Five trials are asked for and five launched, though more than half of the space does not fit."""
    search = memory_filter(BasicVariantGenerator(random_state=1, max_concurrent=2), make_guard(), top_up=top_up)

    launched = configs(run(search, num_samples=5))

    assert all(fits(config) for config in launched)
    assert isinstance(search, MemoryFilteredGenerator)
    assert search.vetoed
    assert len(launched) == (5 if top_up else 5 - len(search.vetoed))


def test_points_to_evaluate_are_judged_once(run: Callable[..., Any]) -> None:
    """The points come first, and topping up does not bring them again."""
    points = [{"width": 2000, "batch": 128, "lr": 0.1}, {"width": 50, "batch": 8, "lr": 0.1}]
    search = memory_filter(BasicVariantGenerator(points_to_evaluate=points, random_state=1), make_guard())

    launched = configs(run(search, num_samples=3))

    assert len(launched) == 3
    assert launched.count(points[1]) == 1
    assert isinstance(search, MemoryFilteredGenerator)
    assert [veto.config for veto in search.vetoed].count(points[0]) == 1


def test_a_random_space_in_which_nothing_fits_ends() -> None:
    """Topping up for ever would hang the experiment."""
    search = MemoryFilteredGenerator(BasicVariantGenerator(), make_guard())
    experiment = tune.Experiment(
        "nothing", train, config={**SPACE, "width": tune.randint(3000, 4000)}, num_samples=2
    )
    search.add_configurations([experiment])

    assert search.next_trial() is None
    assert search.is_finished()
    assert len(search.vetoed) > 100


def test_asha_stops_trials_of_a_filtered_search(run: Callable[..., Any]) -> None:
    """Schedulers see only trials that fit."""
    search = memory_filter(None, make_guard())

    results = run(search, scheduler=ASHAScheduler(max_t=3, grace_period=1))

    assert len(results) == 4
    assert all(fits(config) for config in configs(results))


def optuna_search(**options: Any) -> Any:
    """Return Ray's OptunaSearch."""
    optuna = pytest.importorskip("optuna")
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return OptunaSearch(seed=0, **options)


def hyperopt_search() -> Any:
    """Return Ray's HyperOptSearch."""
    pytest.importorskip("hyperopt")
    from ray.tune.search.hyperopt import HyperOptSearch

    return HyperOptSearch(random_state_seed=0)


@pytest.mark.parametrize(("make", "limited"), [(hyperopt_search, False), (optuna_search, True)])
def test_model_based_searchers_launch_what_fits(
    run: Callable[..., Any], make: Callable[[], Any], limited: bool
) -> None:
    """Each veto is replaced; a limiter stays outside, where Ray looks for it."""
    search = memory_filter(ConcurrencyLimiter(make(), 2) if limited else make(), make_guard())

    launched = configs(run(search, num_samples=4))

    assert isinstance(search, ConcurrencyLimiter if limited else MemoryFilteredSearcher)
    assert len(launched) == 4
    assert all(fits(config) for config in launched)


def test_max_concurrent_trials_works_with_a_filtered_searcher(run: Callable[..., Any]) -> None:
    """Ray wraps its limiter around the filter."""
    launched = configs(run(memory_filter(optuna_search(), make_guard()), max_concurrent_trials=2))

    assert len(launched) == 4
    assert all(fits(config) for config in launched)


def test_optuna_within_ray_gets_vetoes_as_pruned_with_the_constraint(run: Callable[..., Any]) -> None:
    """Told as an error they would be FAIL, of which its sampler learns nothing."""
    optuna = pytest.importorskip("optuna", minversion="5")
    inner = optuna_search()
    search = memory_filter(inner, make_guard())

    run(search)

    trials = inner._ot_study.trials
    states = {trial.state for trial in trials}
    assert states == {optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED}
    for trial in trials:
        assert (trial.constraints["gpu_memory"] <= 0) is fits(trial.params)
    assert len(trials) == 4 + len(search.vetoed)


def test_points_to_evaluate_of_a_searcher_are_judged(run: Callable[..., Any]) -> None:
    """Points that the user knows may be too large for this card as well."""
    points = [{"width": 2000, "batch": 128, "lr": 0.1}, {"width": 50, "batch": 8, "lr": 0.1}]
    search = memory_filter(optuna_search(points_to_evaluate=points), make_guard())

    launched = configs(run(search, num_samples=3))

    assert points[1] in launched
    assert points[0] not in launched
    assert len(launched) == 3


def test_constants_of_the_space_are_judged_with_what_is_searched(run: Callable[..., Any]) -> None:
    """A searcher suggests only what it searches; the trial is launched with the rest as well."""
    space = {**SPACE, "width": 1000}
    search = memory_filter(optuna_search(), make_guard())

    launched = configs(run(search, space, num_samples=3))

    assert {config["width"] for config in launched} == {1000}
    assert {config["batch"] for config in launched} <= {8, 16}
    assert isinstance(search, MemoryFilteredSearcher)
    assert all(veto.config["width"] == 1000 for veto in search.vetoed)


def test_repeats_are_judged_once(run: Callable[..., Any]) -> None:
    """The filter sits inside a Repeater, so that a group is never torn apart by a veto."""
    search = memory_filter(Repeater(optuna_search(), repeat=2), make_guard())

    launched = configs(run(search))

    assert isinstance(search, Repeater)
    assert isinstance(search.searcher, MemoryFilteredSearcher)
    groups = [(config["width"], config["batch"]) for config in launched]
    assert all(groups.count(group) == 2 for group in groups)
    assert all(fits(config) for config in launched)


def test_bohb_pauses_and_resumes_filtered_trials(run: Callable[..., Any]) -> None:
    """HyperBandForBOHB calls on_pause on the searcher of the search algorithm, with Ray's ids."""
    pytest.importorskip("hpbandster")
    pytest.importorskip("ConfigSpace")
    from ray.tune.search.bohb import TuneBOHB

    paused: list[str] = []

    class Bohb(TuneBOHB):
        def on_pause(self, trial_id: str) -> None:
            assert trial_id in self.trial_to_params
            paused.append(trial_id)
            super().on_pause(trial_id)

    search = memory_filter(Bohb(seed=0), make_guard())
    scheduler = HyperBandForBOHB(time_attr="training_iteration", max_t=3, reduction_factor=3)

    launched = configs(run(search, scheduler=scheduler))

    assert len(launched) == 4
    assert all(fits(config) for config in launched)
    assert paused


def test_an_inner_searcher_that_ends_ends_the_search(run: Callable[..., Any]) -> None:
    """FINISHED and None are handed on as they are."""

    class Two(Searcher):
        def __init__(self) -> None:
            super().__init__(metric="loss", mode="min")
            self.configs = [{"width": 100, "batch": 8}, {"width": 9000, "batch": 8}, {"width": 200, "batch": 8}]
            self.completed: list[tuple[Any, bool]] = []
            self.rested = False

        def suggest(self, trial_id: str) -> Any:
            self.rested = not self.rested
            if self.rested:
                return None
            return self.configs.pop(0) if self.configs else Searcher.FINISHED

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            self.completed.append((result and "loss" in result, error))

        def save(self, checkpoint_path: str) -> None:
            pass

    inner = Two()
    launched = configs(run(memory_filter(inner, make_guard()), {}, num_samples=10))

    assert [config["width"] for config in launched] == [100, 200]
    assert sorted(inner.completed, key=str) == [(None, False), (True, False), (True, False)]


def test_a_searcher_that_offers_nothing_that_fits_ends() -> None:
    """A warning says so; the experiment ends instead of asking for ever."""

    class Stubborn(Searcher):
        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {"width": 9000, "batch": 128}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            pass

    search = memory_filter(Stubborn(), make_guard(), max_tries=20)

    assert search.suggest("trial") == Searcher.FINISHED
    assert len(search.vetoed) == 20


def test_a_slow_trace_does_not_hold_up_other_trials() -> None:
    """While a trial runs, a suggestion whose trace takes long is asked for again later."""

    def slow(params: Mapping[str, Any], batch_size: int) -> int:
        if params["width"] == 200 and batch_size == 1:
            time.sleep(0.6)
        return peak(params, batch_size)

    class Sequence(Searcher):
        def __init__(self) -> None:
            super().__init__()
            self.widths = [100, 200]

        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {"width": self.widths.pop(0), "batch": 8}

    guard = MemoryGuard(tracers=[FormulaTracers(slow, LIMIT)], batch_param="batch")
    search = memory_filter(Sequence(), guard)
    assert search.suggest("first") == {"width": 100, "batch": 8}

    start = time.perf_counter()
    answers = [search.suggest("second")]
    waited = time.perf_counter() - start
    while answers[-1] is None:
        answers.append(search.suggest("second"))

    assert answers[0] is None
    assert waited < 0.5
    assert answers[-1] == {"width": 200, "batch": 8}


class Crash(tune.Callback):
    """Ends the driver once, after the second trial has ended, as a lost machine would."""

    def __init__(self, folder: Path) -> None:
        self.flag = folder / "crashed"

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Raise in the driver."""
        if sum(trial.is_finished() for trial in trials) == 2 and not self.flag.exists():
            self.flag.touch()
            raise KeyError("the driver crashed")


@pytest.mark.filterwarnings("ignore:The reported value is ignored:UserWarning")
@pytest.mark.parametrize("make", [lambda: None, optuna_search], ids=["random", "optuna"])
def test_a_search_goes_on_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    """Restored from its folder, the filter still knows which trial is which, and still vetoes."""
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    tuner = tune.Tuner(
        train,
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=memory_filter(make(), make_guard(), max_concurrent=1),
            num_samples=4,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            verbose=0, storage_path=str(tmp_path), name="search", callbacks=[Crash(tmp_path)]
        ),
    )
    with pytest.raises(Exception, match="the driver crashed"):
        tuner.fit()

    results = tune.Tuner.restore(str(tmp_path / "search"), trainable=train).fit()

    launched = configs(results)
    assert len(launched) == 4
    assert all(fits(config) for config in launched)


def test_two_hundred_launches_hold_no_configuration_that_cannot_fit() -> None:
    """And none that fits is vetoed; without running them, which is not what is tested."""
    search = MemoryFilteredGenerator(BasicVariantGenerator(random_state=0), make_guard())
    search.add_configurations([tune.Experiment("many", train, config=dict(SPACE), num_samples=200)])
    launched = []
    while (trial := search.next_trial()) is not None:
        launched.append(trial)
        search.on_trial_complete(trial.trial_id)

    assert len(launched) == 200
    assert len({trial.trial_id for trial in launched}) == 200
    assert all(fits(trial.config) for trial in launched)
    assert not any(fits(veto.config) for veto in search.vetoed)


def test_trials_share_a_gpu_by_their_estimates(run: Callable[..., Any]) -> None:
    """Each asks for its share of the limit; none waits for more than there is."""
    guard = make_guard()
    grid = {"width": tune.grid_search([50, 500, 2000]), "batch": tune.grid_search([8, 16])}
    search = memory_filter(None, guard)

    launched = configs(
        run(search, grid, num_samples=1, trainable=tune.with_resources(train, gpu_fraction(guard, cpus=0.5)))
    )

    # 2000 x 8 is exactly the limit; 2000 x 16 is vetoed and never left pending for two GPUs.
    assert len(launched) == 5


@pytest.mark.parametrize(
    ("config", "share"),
    [
        ({"width": 500, "batch": 8}, 0.25),
        ({"width": 501, "batch": 8}, 0.26),
        ({"width": 1, "batch": 1}, 0.05),
        ({"width": 2000, "batch": 8}, 1.0),
        ({"width": 9000, "batch": 8}, 1.0),
        ({"batch": 8}, 1.0),
    ],
)
def test_the_share_of_a_gpu_is_rounded_up_and_never_above_one(config: dict[str, Any], share: float) -> None:
    """Two GPUs for one trial would leave it pending for ever; unknown means a whole one."""
    resources = gpu_fraction(make_guard())(config)

    assert resources.required_resources["GPU"] == pytest.approx(share)


def test_population_based_training_stays_within_the_gpu() -> None:
    """PBT mutates running trials, where no search algorithm is asked: its own mutation is called here."""
    sizes = [8, 16, 32, 64, 128]

    def mutated(explore: Any) -> set[int]:
        scheduler = PopulationBasedTraining(
            time_attr="training_iteration",
            metric="loss",
            mode="min",
            hyperparam_mutations={"batch": sizes},
            custom_explore_fn=explore,
            resample_probability=1.0,
        )
        winner = SimpleNamespace(config={"width": 900, "batch": 16})
        loser = SimpleNamespace(config={"width": 900, "batch": 8})
        return {scheduler._get_new_config(loser, winner)[0]["batch"] for _ in range(60)}

    assert max(mutated(None)) > 16
    assert mutated(explore_fitting(make_guard(), batch_sizes=sizes)) == {8, 16}


@pytest.mark.parametrize(
    ("config", "batch_sizes", "expected"),
    [
        ({"width": 100, "batch": 128}, (), 128),
        ({"width": 1000, "batch": 128}, (), 16),
        ({"width": 1000, "batch": 100}, (), 12),
        ({"width": 1000, "batch": 128}, (5, 10, 100, 200), 10),
    ],
)
def test_a_mutated_configuration_gets_the_next_batch_that_fits(
    config: dict[str, Any], batch_sizes: tuple[int, ...], expected: int
) -> None:
    """Halves keep a batch divisible as it was; given sizes are kept to."""
    explored = explore_fitting(make_guard(), batch_sizes=batch_sizes)(dict(config))

    assert explored == {**config, "batch": expected}


def test_a_mutation_that_fits_at_no_batch_is_replaced_by_the_last_one_that_did() -> None:
    """A population keeps running."""
    explore = explore_fitting(make_guard(), lambda config: {**config, "width": config["width"] * 100})
    first = explore({"width": 10, "batch": 8})

    assert first == {"width": 1000, "batch": 8}
    assert explore({"width": 1000, "batch": 8}) == first


def test_a_ray_space_is_judged_before_the_search() -> None:
    """Half of the widths do not fit at the batch size of all trials; a nested name is kept."""
    param_space = {
        "model": {"width": tune.grid_search([100, 1000, 10_000, 100_000])},
        "layers": tune.qrandint(2, 16, 2),
        "lr": tune.loguniform(1e-5, 1e-1),
        "batch": 16,
    }

    def nested_peak(params: Mapping[str, Any], batch_size: int) -> int:
        return int(params["model"]["width"]) * batch_size

    guard = MemoryGuard(tracers=[FormulaTracers(nested_peak, LIMIT)], batch_param="batch")
    space = space_of(param_space, batch_param="batch")
    report = survey(guard, space)

    assert space.parameters["layers"] == Numbers(low=2, high=16, step=2, whole=True)
    assert space.constants == {"batch": 16}
    assert report.share_fitting == 0.5
    assert report.reduced.parameters["model/width"] == Choices((100, 1000))
    reduced = param_space_of(report.reduced)
    assert reduced["model"]["width"].categories == [100, 1000]
    assert (reduced["lr"].lower, reduced["lr"].upper, reduced["batch"]) == (1e-5, 1e-1, 16)


def test_a_domain_without_a_range_cannot_be_surveyed() -> None:
    """The message says which parameter it is."""
    with pytest.raises(UsageError, match=r"parameter 'noise' has the domain .* of which no range is known"):
        space_of({"noise": tune.randn(), "batch_size": 8})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: memory_filter(None), "memory_filter: guard must be a MemoryGuard, got None"),
        (
            lambda: memory_filter(3, make_guard()),
            "search_alg must be a Searcher, a SearchAlgorithm, a name or None",
        ),  # type: ignore[arg-type]
        (lambda: gpu_fraction(make_guard(), smallest=0), "gpu_fraction: smallest lies above 0 and up to 1, got 0"),
        (lambda: gpu_fraction(make_guard(), cpus=-1), "gpu_fraction: cpus must be at least 0, got -1"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(make: Callable[[], Any], message: str) -> None:
    """Before an experiment starts."""
    with pytest.raises(UsageError, match=message):
        make()
