"""Ray Tune: no trial is launched that cannot fit, and several share a GPU by their estimates.

::

    guard = MemoryGuard("train.py:build", gpu="A100-40GB")
    tuner = tune.Tuner(
        tune.with_resources(train, gpu_fraction(guard)),
        param_space={"batch_size": tune.choice([32, 64, 128]), "lr": tune.loguniform(1e-5, 1e-1)},
        tune_config=tune.TuneConfig(search_alg=memory_filter(OptunaSearch(), guard), num_samples=50),
    )

`memory_filter` works on what the trial would be launched with: conditional parameters and
``tune.sample_from`` are resolved by then. Of ``num_samples`` only launched trials count: searchers are asked
again for each veto, and random search is topped up; a grid has as many points as fit.

A trial that runs out of memory all the same fails with ``FailureConfig(max_failures=0)``, Ray's default;
do not raise it for that, since a retry meets the same end.
"""

from __future__ import annotations

import copy
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dnnmem_tune.decisions.space import Choices, Numbers, Parameter, SearchSpace
from dnnmem_tune.decisions.verdict import Verdict, VerdictState
from dnnmem_tune.errors import MissingPackageError, UsageError
from dnnmem_tune.guard import MemoryGuard
from dnnmem_tune.guard.keys import SEPARATOR, nest, put, take

try:
    from ray import tune
    from ray.tune import PlacementGroupFactory
    from ray.tune.experiment import Experiment, Trial
    from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher, create_searcher
    from ray.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform
    from ray.tune.search.search_generator import SearchGenerator
    from ray.tune.search.util import _set_search_properties_backwards_compatible
    from ray.tune.search.variant_generator import parse_spec_vars
    from ray.tune.utils import flatten_dict, merge_dicts
    from ray.tune.utils.util import _atomic_save, _load_newest_checkpoint
except ImportError as error:
    raise MissingPackageError(
        f"the Ray integration needs the package 'ray[tune]', which cannot be imported ({error}); "
        'run pip install "dnnmem-tune[ray]"'
    ) from error

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 0.1
"""How long the controller is held up for a trace while other trials run; it asks again soon."""

_MAX_TOP_UPS = 100
"""Rounds of random search without a single launch, after which nothing is taken to fit."""


@dataclass(frozen=True, slots=True)
class VetoedConfig:
    """A configuration that was not launched."""

    config: Mapping[str, Any]

    verdict: Verdict


def memory_filter(
    search_alg: Searcher | SearchAlgorithm | str | None = None,
    guard: MemoryGuard | None = None,
    *,
    top_up: bool = True,
    max_tries: int = 1000,
    max_concurrent: int = 0,
) -> Searcher | SearchAlgorithm:
    """Return a search algorithm that proposes only what fits, for ``TuneConfig(search_alg=...)``.

    Args:
        search_alg: A searcher (``OptunaSearch()``), a generator, or a name; None for the grid and random
            search that Ray does without one. Wrappers such as `ConcurrencyLimiter` and `Repeater` stay
            outermost, so that repeats are judged once.
        guard: What judges.
        top_up: Whether random search goes on until ``num_samples`` trials are launched.
        max_tries: The search ends after so many vetoes in a row.
        max_concurrent: For the grid and random search, the most trials at once; 0 for no limit.
            ``TuneConfig(max_concurrent_trials=...)`` works for searchers only.

    Raises:
        UsageError: If an argument cannot be meant.

    """
    if not isinstance(guard, MemoryGuard):
        raise UsageError(f"memory_filter: guard must be a MemoryGuard, got {guard!r}")
    if isinstance(search_alg, str):
        search_alg = create_searcher(search_alg)
    if search_alg is None:
        search_alg = BasicVariantGenerator(max_concurrent=max_concurrent)
    if isinstance(search_alg, Searcher | SearchGenerator):
        wrapped: Searcher | SearchAlgorithm = _wrap_innermost(search_alg, guard, max_tries)
        return wrapped
    if isinstance(search_alg, SearchAlgorithm):
        return MemoryFilteredGenerator(search_alg, guard, top_up=top_up)
    raise UsageError(
        f"memory_filter: search_alg must be a Searcher, a SearchAlgorithm, a name or None, got {search_alg!r}"
    )


class MemoryFilteredSearcher(Searcher):
    """Asks a searcher again until what it suggests fits; made by `memory_filter`.

    Args:
        searcher: Any model-based searcher.
        guard: What judges.
        max_tries: Suggestions in a row that are vetoed before the search ends.

    """

    def __init__(self, searcher: Searcher, guard: MemoryGuard, *, max_tries: int = 1000) -> None:
        super().__init__(metric=searcher.metric, mode=searcher.mode)
        self.searcher = searcher
        """The searcher within; Ray looks for it by this name when it saves and pauses."""
        self.guard = guard
        self.max_tries = max_tries
        self.vetoed: list[VetoedConfig] = []
        self._constants: dict[str, Any] = {}
        self._inner_ids: dict[str, str] = {}
        self._num_asked = 0
        self._newest_id = ""
        self._waiting: tuple[str, dict[str, Any]] | None = None
        self._future: Future[Verdict] | None = None

    @property
    def metric(self) -> Any:
        """The searcher's own."""
        return self.searcher.metric

    @property
    def mode(self) -> Any:
        """The searcher's own."""
        return self.searcher.mode

    def set_search_properties(self, metric: Any, mode: Any, config: dict[str, Any], **spec: Any) -> bool:
        """Hand the space on, and note what is the same in every trial."""
        # The searcher suggests what is searched; a trial is launched with the constants as well.
        self._constants = copy.deepcopy(config)
        self.guard.expect(_ranges(config))
        return bool(
            _set_search_properties_backwards_compatible(
                self.searcher.set_search_properties, metric, mode, config, **spec
            )
        )

    def suggest(self, trial_id: str) -> Any:
        """Return a configuration that fits, or what the searcher says if it has none."""
        for _ in range(self.max_tries):
            if self._waiting is None:
                suggestion = self._ask(trial_id)
                if not isinstance(suggestion, dict):
                    return suggestion  # Not now, or finished.
                self._waiting = (self._newest_id, suggestion)
            inner_id, config = self._waiting
            verdict = self._verdict(config)
            if verdict is None:
                return None
            self._waiting = self._future = None
            _tell_optuna(self.searcher, inner_id, self.guard, verdict)
            if self.guard.allows(verdict):
                self._inner_ids[trial_id] = inner_id
                return config
            self._veto(inner_id, config, verdict)
        logger.warning("%d suggestions in a row do not fit; the search ends", self.max_tries)
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Hand a result on."""
        self.searcher.on_trial_result(self._inner(trial_id), result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Hand an end on."""
        self.searcher.on_trial_complete(self._inner(trial_id), result=result, error=error)
        self._inner_ids.pop(trial_id, None)

    def on_pause(self, trial_id: str) -> None:
        """Hand a pause on: `HyperBandForBOHB` calls this on the searcher of the search algorithm."""
        if hasattr(self.searcher, "on_pause"):
            self.searcher.on_pause(self._inner(trial_id))

    def on_unpause(self, trial_id: str) -> None:
        """Hand the end of a pause on."""
        if hasattr(self.searcher, "on_unpause"):
            self.searcher.on_unpause(self._inner(trial_id))

    def add_evaluated_point(self, *arguments: Any, **named: Any) -> Any:
        """Hand a point on; it was run, so there is nothing to judge."""
        return self.searcher.add_evaluated_point(*arguments, **named)

    def add_evaluated_trials(self, *arguments: Any, **named: Any) -> Any:
        """Hand trials on."""
        return self.searcher.add_evaluated_trials(*arguments, **named)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Hand the limit on."""
        return bool(self.searcher.set_max_concurrency(max_concurrent))

    def save(self, checkpoint_path: str) -> None:
        """Save the searcher within."""
        self.searcher.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """Restore the searcher within."""
        self.searcher.restore(checkpoint_path)

    def get_state(self) -> dict[str, Any]:
        """Return what has to survive a crash besides the searcher: which trial is which there."""
        kept = ("_constants", "_inner_ids", "_num_asked", "_waiting", "vetoed")
        return {name: copy.copy(getattr(self, name)) for name in kept}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take a state back."""
        self.__dict__.update(state)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_future": None}

    def _inner(self, trial_id: str) -> str:
        return self._inner_ids.get(trial_id, trial_id)

    def _ask(self, trial_id: str) -> Any:
        # A searcher keeps suggestions by id (OptunaSearch answers the same to the same): a new id each time.
        self._num_asked += 1
        self._newest_id = f"{trial_id}-{self._num_asked}"
        return self.searcher.suggest(self._newest_id)

    def _verdict(self, config: dict[str, Any]) -> Verdict | None:
        """Return the verdict on what is waiting, or None if its trace takes long and other trials run."""
        if self._future is None:
            self._future = self.guard.submit(_resolved(self._constants, config))
        try:
            # With nothing running the controller would sleep a second for every None.
            return self._future.result(timeout=_PATIENCE_SECONDS if self._inner_ids else None)
        except TimeoutError:
            return None

    def _veto(self, inner_id: str, config: dict[str, Any], verdict: Verdict) -> None:
        logger.info("not launched: %s %s", config, verdict.reason)
        self.vetoed.append(VetoedConfig(_resolved(self._constants, config), verdict))
        # With error=True Optuna would file it under FAIL, of which it learns nothing.
        self.searcher.on_trial_complete(inner_id, result=None, error=False)


class MemoryFilteredGenerator(SearchAlgorithm):
    """Skips what does not fit in a grid or a random search; made by `memory_filter`.

    Args:
        generator: The generator of trials, `BasicVariantGenerator` as a rule.
        guard: What judges.
        top_up: Whether random search goes on until as many trials are launched as were asked for.

    """

    def __init__(self, generator: SearchAlgorithm, guard: MemoryGuard, *, top_up: bool = True) -> None:
        self.guard = guard
        self.vetoed: list[VetoedConfig] = []
        self._generators: list[Any] = [generator]
        self._top_up = top_up
        self._random: list[Experiment] = []
        self._missing = 0
        self._rounds = 0
        self._live: set[str] = set()

    @property
    def metric(self) -> Any:
        """The generator's own."""
        return self._generators[0].metric

    @property
    def total_samples(self) -> int:
        """Trials that will be launched at most."""
        return int(self._generators[0].total_samples)

    def set_search_properties(self, metric: Any, mode: Any, config: dict[str, Any], **spec: Any) -> bool:
        """Hand the space on."""
        self.guard.expect(_ranges(config))
        return bool(
            _set_search_properties_backwards_compatible(
                self._generators[0].set_search_properties, metric, mode, config, **spec
            )
        )

    def add_configurations(self, experiments: Any) -> None:
        """Take the experiments; those without a grid can be topped up."""
        listed = list(experiments) if isinstance(experiments, Sequence) else [experiments]
        self._generators[0].add_configurations(listed)
        self._random = [
            experiment
            for experiment in listed
            if isinstance(experiment, Experiment) and _is_random(experiment.spec.get("config", {}))
        ]

    def next_trial(self) -> Trial | None:
        """Return the next trial that fits; None where there is none now."""
        while not self._is_busy():
            generator = self._generators[-1]
            trial: Trial | None = generator.next_trial()
            if trial is None:
                if not generator.is_finished() or not self._start_top_up():
                    return None
                continue
            verdict = self.guard.check(trial.config)
            if self.guard.allows(verdict):
                self._rounds = 0
                self._live.add(trial.trial_id)
                return trial
            logger.info("not launched: %s %s", trial.config, verdict.reason)
            self.vetoed.append(VetoedConfig(dict(trial.config), verdict))
            self._missing += 1
            generator.on_trial_complete(trial.trial_id, error=False)
        return None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Hand a result on."""
        for generator in self._generators:
            generator.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Hand an end on."""
        self._live.discard(trial_id)
        for generator in self._generators:
            generator.on_trial_complete(trial_id, result=result, error=error)

    def is_finished(self) -> bool:
        """Return whether no trial will come any more."""
        return bool(self._finished) or (self._generators[-1].is_finished() and not self._can_top_up())

    def set_finished(self) -> None:
        """End the search."""
        self._finished = True
        self._generators[-1].set_finished()

    def has_checkpoint(self, dirpath: str) -> bool:
        """Return whether the generator left a checkpoint."""
        return bool(self._generators[0].has_checkpoint(dirpath))

    def save_to_dir(self, dirpath: str, **named: Any) -> None:
        """Save the generators, and what was vetoed."""
        for index, generator in enumerate(self._generators):
            generator.save_to_dir(_folder(dirpath, index), **named)
        kept = ("vetoed", "_missing", "_rounds", "_live", "_random")
        state = {name: getattr(self, name) for name in kept} | {"num_generators": len(self._generators)}
        name = _STATE_FILE.format(named.get("session_str", "default"))
        _atomic_save(state=state, checkpoint_dir=dirpath, file_name=name, tmp_file_name=f"tmp-{name}")

    def restore_from_dir(self, dirpath: str) -> None:
        """Take back what was saved."""
        state = _load_newest_checkpoint(dirpath, _STATE_FILE.format("*")) or {"num_generators": 1}
        while len(self._generators) < state["num_generators"]:
            self._generators.append(self._another_generator())
        for index, generator in enumerate(self._generators):
            generator.restore_from_dir(_folder(dirpath, index))
        self.__dict__.update({name: value for name, value in state.items() if name != "num_generators"})

    def _is_busy(self) -> bool:
        limit = getattr(self._generators[0], "max_concurrent", 0)
        return bool(self._finished) or (limit > 0 and len(self._live) >= limit)

    def _can_top_up(self) -> bool:
        return self._top_up and self._missing > 0 and bool(self._random) and self._rounds < _MAX_TOP_UPS

    def _start_top_up(self) -> bool:
        """Draw as many again as were vetoed."""
        if not self._can_top_up():
            return False
        generator = self._another_generator()
        experiment = copy.copy(self._random[0])
        experiment.spec = {**experiment.spec, "num_samples": self._missing}
        generator.add_configurations([experiment])
        self._generators.append(generator)
        self._missing = 0
        self._rounds += 1
        return True

    def _another_generator(self) -> BasicVariantGenerator:
        # The user's random state goes on in it, so that a seeded search stays reproducible.
        rng = getattr(getattr(self._generators[0], "_random_state", None), "rng", None)
        own = isinstance(rng, np.random.Generator | np.random.RandomState)
        return BasicVariantGenerator(random_state=rng if own else None)


@dataclass(frozen=True)
class GpuFraction:
    """Resources of a trial by its estimate; made by `gpu_fraction`."""

    guard: MemoryGuard

    cpus: float = 1.0

    smallest: float = 0.05
    """No trial gets less of a GPU: compute is shared as well."""

    def __call__(self, config: Mapping[str, Any]) -> PlacementGroupFactory:
        """Return the resources that a trial with this configuration is to get."""
        return PlacementGroupFactory([{"CPU": self.cpus, "GPU": self.share(config)}])

    def share(self, config: Mapping[str, Any]) -> float:
        """Return the share of a GPU, rounded up to a hundredth; a whole one where it is unknown."""
        verdict = self.guard.check(config)
        if verdict.state is VerdictState.UNKNOWN or not verdict.peak_bytes or not verdict.limit_bytes:
            return 1.0
        if verdict.state is VerdictState.EXCEEDS:
            # More than one GPU would leave the trial pending for ever; memory_filter keeps it from getting here.
            logger.warning("a trial that does not fit a GPU asks for one: %s", verdict.reason)
            return 1.0
        return min(1.0, max(self.smallest, math.ceil(100 * verdict.peak_bytes / verdict.limit_bytes) / 100))


def gpu_fraction(guard: MemoryGuard, *, cpus: float = 1.0, smallest: float = 0.05) -> GpuFraction:
    """Return resources for ``tune.with_resources`` by which trials share a GPU as their estimates allow.

    Ray does not enforce the share, so that the estimates have to hold: leave a ``safety`` in the guard.
    The peak of an estimate contains the CUDA context, of which each process on a GPU has its own.

    Args:
        guard: What estimates. Of several cards, the share is that of the smallest one that fits.
        cpus: CPUs for each trial.
        smallest: The least share of a GPU that a trial gets; 0.25 allows four on one GPU.

    Raises:
        UsageError: If a number is out of range.

    """
    if not 0 < smallest <= 1:
        raise UsageError(f"gpu_fraction: smallest lies above 0 and up to 1, got {smallest!r}")
    if cpus < 0:
        raise UsageError(f"gpu_fraction: cpus must be at least 0, got {cpus!r}")
    return GpuFraction(guard, cpus, smallest)


@dataclass
class ExploreFitting:
    """A ``custom_explore_fn`` that keeps mutated configurations within the GPU; made by `explore_fitting`."""

    guard: MemoryGuard

    explore: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    batch_sizes: tuple[int, ...] = ()

    last_fitting: dict[str, Any] | None = None
    """What was handed out last; taken again where no batch size fits."""

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration, with a smaller batch if it has to be."""
        mutated = self.explore(config) if self.explore is not None else config
        for candidate in self._candidates(mutated):
            if self.guard.allows(self.guard.check(candidate)):
                self.last_fitting = dict(candidate)
                return candidate
        if self.last_fitting is not None:
            return dict(self.last_fitting)
        logger.warning("a mutated configuration fits at no batch size and is kept as it was: %s", mutated)
        return config

    def _candidates(self, config: dict[str, Any]) -> list[dict[str, Any]]:
        path = self.guard.batch_param
        try:
            wanted = int(take(config, path)[0])
        except UsageError:
            return [config]
        halves = [wanted >> shift for shift in range(1, wanted.bit_length())]
        smaller = sorted((size for size in self.batch_sizes if size < wanted), reverse=True) or halves
        return [config, *(put(config, path, size) for size in smaller)]


def explore_fitting(
    guard: MemoryGuard,
    explore: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    *,
    batch_sizes: Sequence[int] = (),
) -> ExploreFitting:
    """Return a ``custom_explore_fn`` for population based training: what it mutates to still fits.

    A mutated configuration that does not fit gets a smaller batch: the next of ``batch_sizes``, or halves.

    Args:
        guard: What judges.
        explore: Another function to apply first.
        batch_sizes: The batch sizes that are allowed.

    """
    return ExploreFitting(guard, explore, tuple(batch_sizes))


def space_of(param_space: Mapping[str, Any], *, batch_param: str = "batch_size") -> SearchSpace:
    """Return a Ray space as one that ``guard.survey`` judges before the search.

    Args:
        param_space: As `Tuner` takes it; nested parameters get names such as ``model/width``.
        batch_param: Which of them is the batch size.

    Raises:
        UsageError: If a domain has no bounds (``randn``) or depends on others (``sample_from``).

    """
    parameters: dict[str, Parameter] = {}
    constants: dict[str, Any] = {}
    for name, value in flatten_dict(dict(param_space), prevent_delimiter=True).items():
        path, is_grid = name.removesuffix(f"{SEPARATOR}grid_search"), name.endswith("grid_search")
        if is_grid:
            parameters[path] = Choices(tuple(value))
        elif isinstance(value, Domain):
            parameters[path] = _parameter(path, value)
        else:
            constants[path] = value
    return SearchSpace(parameters=parameters, constants=constants, batch_param=batch_param)


def param_space_of(space: SearchSpace) -> dict[str, Any]:
    """Return a space, such as the reduced one of a survey, as Ray takes it."""
    flat = {**space.constants, **{name: _domain(kind) for name, kind in space.parameters.items()}}
    return nest(flat)


def _parameter(name: str, domain: Any) -> Parameter:
    sampler = domain.get_sampler()
    step = getattr(sampler, "q", None)
    log = isinstance(getattr(sampler, "sampler", sampler), LogUniform)
    match domain:
        case Categorical():
            return Choices(tuple(domain.categories))
        case Integer():
            # Ray leaves out the upper bound of whole numbers, except where they are quantized.
            last = domain.upper - (0 if step is not None else 1)
            return Numbers(low=domain.lower, high=last, step=step, log=log, whole=True)
        case Float() if math.isfinite(domain.lower) and math.isfinite(domain.upper):
            return Numbers(low=domain.lower, high=domain.upper, step=step, log=log)
    raise UsageError(
        f"parameter {name!r} has the domain {domain.domain_str}, of which no range is known; "
        "survey the space without it, or with a range"
    )


def _domain(kind: Parameter) -> Any:
    if isinstance(kind, Choices):
        return tune.choice(list(kind.options))
    if kind.whole:
        low, high, step = int(kind.low), int(kind.high), int(kind.step or 1)
        if step > 1:
            return tune.qlograndint(low, high, step) if kind.log else tune.qrandint(low, high, step)
        return tune.lograndint(low, high + 1) if kind.log else tune.randint(low, high + 1)
    if kind.step is not None:
        quantized = tune.qloguniform if kind.log else tune.quniform
        return quantized(kind.low, kind.high, kind.step)
    return tune.loguniform(kind.low, kind.high) if kind.log else tune.uniform(kind.low, kind.high)


_STATE_FILE = "memory-filter-state-{}.pkl"


def _wrap_innermost(search_alg: Any, guard: MemoryGuard, max_tries: int) -> Any:
    """Put the filter around the searcher at the bottom of a pile of wrappers."""
    if isinstance(getattr(search_alg, "searcher", None), Searcher):
        search_alg.searcher = _wrap_innermost(search_alg.searcher, guard, max_tries)
        return search_alg
    return MemoryFilteredSearcher(search_alg, guard, max_tries=max_tries)


def _resolved(constants: Mapping[str, Any], suggestion: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the trial would be launched with."""
    return dict(merge_dicts(dict(constants), copy.deepcopy(dict(suggestion))))


def _ranges(config: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[float, float]]:
    """Return the ranges of the continuous parameters of a Ray space."""
    ranges = {}
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Float) and math.isfinite(value.lower) and math.isfinite(value.upper):
            ranges[path] = (float(value.lower), float(value.upper))
        elif isinstance(value, Mapping) and "grid_search" not in value:
            ranges |= _ranges(value, path + SEPARATOR)
    return ranges


def _is_random(config: dict[str, Any]) -> bool:
    """Return whether a space is sampled, and has no grid that is visited point by point."""
    _constants, sampled, grid = parse_spec_vars(config)
    return bool(sampled) and not grid


def _folder(dirpath: str, index: int) -> str:
    """Return the folder of a generator's checkpoint; all of them use the same file names."""
    if index == 0:
        return dirpath
    folder = Path(dirpath) / f"memory-filter-{index}"
    os.makedirs(folder, exist_ok=True)
    return str(folder)


def _tell_optuna(searcher: Any, inner_id: str, guard: MemoryGuard, verdict: Verdict) -> None:
    """Give Optuna's sampler the constraint, by which it finds the limit in half as many asks."""
    trials = getattr(searcher, "_ot_trials", None)
    trial = trials.get(inner_id) if isinstance(trials, Mapping) else None
    if trial is not None:
        from dnnmem_tune.integrations.optuna import store_verdict

        store_verdict(trial, guard, verdict)


__all__ = [
    "ExploreFitting",
    "GpuFraction",
    "MemoryFilteredGenerator",
    "MemoryFilteredSearcher",
    "VetoedConfig",
    "explore_fitting",
    "gpu_fraction",
    "memory_filter",
    "param_space_of",
    "space_of",
]
