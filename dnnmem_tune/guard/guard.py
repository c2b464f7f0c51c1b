"""MemoryGuard: asked before each trial of a search, answers in milliseconds, and never stops the search."""

from __future__ import annotations

import json
import logging
import threading
import uuid
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dnnmem_tune.decisions.accumulation import AccumulationPlan, plan_accumulation
from dnnmem_tune.decisions.batch_size import BatchSizeResult, CannotRun, Outcome, largest_batch
from dnnmem_tune.decisions.verdict import Verdict, VerdictState
from dnnmem_tune.errors import DnnMemError, UsageError, WorkloadError
from dnnmem_tune.guard.footprint import Footprint, TracerFactory
from dnnmem_tune.guard.keys import batch_size_of, find_leaves, plain_value, put, take
from dnnmem_tune.guard.library import FootprintLibrary, TraceCounts

logger = logging.getLogger(__name__)

UnknownPolicy = Literal["run", "veto"]

_live: weakref.WeakValueDictionary[str, MemoryGuard] = weakref.WeakValueDictionary()
"""Guards of this process: a copy that was pickled and comes back here is the same guard, with all it knows."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What really happened to a launched trial."""

    params: Mapping[str, Any]

    estimated_bytes: int | None
    """Device peak that was estimated; None where it was unknown."""

    measured_bytes: int | None
    """Device peak that was measured; None where the trial ran out of memory before it was read."""

    out_of_memory: bool


class MemoryGuard:
    """Says of each configuration of a search whether it fits a GPU, before it is launched.

    A configuration is traced once, whatever its batch size, also when many threads and processes ask
    for it; parameters that do not change memory are found from the traces (see ``guard.inert``).
    Nothing that goes wrong with a configuration raises: its verdict is *unknown*, with the reason.

    Args:
        workload: What ``dnnmem_tune.estimate`` takes: ``"train.py:build"``, a built-in name, a function.
        gpu: Card of the catalogue, or a size such as ``"24GiB"``; of several, a configuration has to
            fit one. Without it every verdict is *unknown*.
        unknown: What ``allows`` says where the verdict is *unknown*: ``"run"`` or ``"veto"``.
        batch_param: Name of the batch size among the parameters; ``"train/batch"`` if nested.
        params: Parameters that are the same in every trial.
        ignore: Parameters of the search that the workload does not take, such as a number of epochs.
        cache_dir: Folder in which processes share traces; None to share nothing.
        workers: How many configurations are traced at once.
        tracers: Makes the tracers, one factory for each card; by default the estimator's own.
        options: Passed on to the estimator: ``safety``, ``conv_workspace``, ``framework``, ...

    Raises:
        UsageError: If an argument cannot be meant.

    """

    def __init__(
        self,
        workload: Any = None,
        *,
        gpu: str | Iterable[str] | None = None,
        unknown: UnknownPolicy = "run",
        batch_param: str = "batch_size",
        params: Mapping[str, Any] | None = None,
        ignore: Iterable[str] = (),
        cache_dir: str | Path | None = None,
        workers: int = 2,
        tracers: Iterable[TracerFactory] | None = None,
        **options: Any,
    ) -> None:
        if unknown not in ("run", "veto"):
            raise UsageError(f'MemoryGuard: unknown is "run" or "veto", got {unknown!r}')
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise UsageError(f"MemoryGuard: workers must be a whole number of at least 1, got {workers!r}")
        self.unknown: UnknownPolicy = unknown
        self.batch_param = batch_param
        self.gpus = _names(gpu)
        self.fixed_params = dict(params or {})
        self.ignored = frozenset(ignore)
        self._workers = workers
        self._cache_dir = Path(cache_dir).expanduser() if cache_dir is not None else None
        if tracers is None:
            tracers = _estimator_tracers(workload, self.gpus, {**options, "cache_dir": self._cache_dir})
        self._factories = tuple(tracers)
        self._ranges: dict[str, tuple[float, float]] = {}
        self._out_of_memory: dict[str, int] = {}
        self._reasons: set[str] = set()
        self.observations: list[Observation] = []
        self._token = uuid.uuid4().hex
        self._start()

    def _start(self) -> None:
        self._libraries = [
            FootprintLibrary(factory, cache_dir=self._cache_dir, workers=self._workers)
            for factory in self._factories
        ]
        self._verdicts: dict[tuple[int, str, int], Verdict] = {}
        self._largest: dict[tuple[int, str], BatchSizeResult] = {}
        self._lock = threading.Lock()
        self._askers: ThreadPoolExecutor | None = None
        for library in self._libraries:
            library.ranges.update(self._ranges)
        _live[self._token] = self

    def check(self, params: Mapping[str, Any]) -> Verdict:
        """Return whether a configuration fits.

        Args:
            params: Hyperparameters by name, the batch size among them; nested mappings are allowed.

        Returns:
            The verdict; *unknown* with the reason where anything stands in the way.

        """
        try:
            if not self._libraries:
                raise UsageError(
                    'no GPU is given, so there is no limit to compare with; pass gpu="A100-40GB" or gpu="24GiB"'
                )
            batch_size, rest = self._split(params)
            verdict = _best([self._judge(index, rest, batch_size) for index in range(len(self._libraries))])
            return self._corrected(verdict, rest, batch_size)
        except DnnMemError as error:
            return self._unknown(_with_advice(str(error)))
        except Exception as error:  # The study goes on whatever the estimator does; the log has the traceback.
            logger.warning("the estimator failed for %s", params, exc_info=True)
            return Verdict.unknown(f"the estimator failed with {type(error).__name__}: {error}")

    def submit(self, params: Mapping[str, Any]) -> Future[Verdict]:
        """Return the verdict as a future, for a loop that has other things to do meanwhile."""
        with self._lock:
            if self._askers is None:
                self._askers = ThreadPoolExecutor(2 * self._workers, thread_name_prefix="dnnmem-check")
        return self._askers.submit(self.check, params)

    def allows(self, verdict: Verdict) -> bool:
        """Return whether a trial with this verdict is to be launched."""
        if verdict.state is VerdictState.UNKNOWN:
            return self.unknown == "run"
        return verdict.state is VerdictState.FITS

    def violation(self, verdict: Verdict) -> float:
        """Return the value of a constraint for an optimizer: at most zero exactly where ``allows`` says yes.

        ``peak / limit - 1`` where it is known; an unknown verdict stands at the edge, on the side
        that the policy puts it. Never NaN.
        """
        if verdict.violation is not None:
            return verdict.violation
        return 0.0 if self.unknown == "run" else 2.0**-40

    def largest_batch(self, params: Mapping[str, Any]) -> BatchSizeResult:
        """Return the largest batch size at which a configuration fits.

        Args:
            params: Hyperparameters; a batch size among them is not looked at.

        Raises:
            DnnMemError: If the configuration cannot be traced.

        """
        batch_size, rest = self._split(put(params, self.batch_param, self._batch_hint(params)))
        if not self._libraries:
            raise UsageError('largest batch: no GPU is given; pass gpu="A100-40GB" or gpu="24GiB"')
        results = [self._search(index, rest, batch_size) for index in range(len(self._libraries))]
        return max(results, key=lambda result: result.largest_batch or 0)

    def repair(
        self, params: Mapping[str, Any], *, accumulation_param: str | None = None
    ) -> tuple[AccumulationPlan, ...]:
        """Return how the batch size of ``params`` is reached with micro-batches that fit.

        Args:
            params: Hyperparameters with the wanted batch size.
            accumulation_param: Name of the workload's number of accumulation steps. With it, each plan
                is checked as it will run: gradients stay allocated between the micro-batches.

        Returns:
            The plan to take first, then alternatives; none where not even one sample fits.

        Raises:
            DnnMemError: If the configuration cannot be traced.

        """
        wanted = self._split(params)[0]
        largest = self.largest_batch(params).largest_batch
        if largest is None:
            return ()

        def fits(micro_batch: int) -> bool:
            changed = put(params, self.batch_param, micro_batch)
            if accumulation_param is not None and micro_batch < wanted:
                changed = put(changed, accumulation_param, max(2, round(wanted / micro_batch)))
            return self.check(changed).state is VerdictState.FITS

        return plan_accumulation(wanted, min(largest, wanted), fits=fits)

    def expect(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Tell the guard between which values continuous parameters will be asked for.

        With that, two traces at the ends show for the whole range that a parameter is inert. The
        hosts call this with the search space; calling it again widens the ranges.
        """
        for name, (low, high) in ranges.items():
            if name in self._ranges:
                low, high = min(low, self._ranges[name][0]), max(high, self._ranges[name][1])
            self._ranges[name] = (low, high)
        for library in self._libraries:
            library.ranges.update(self._ranges)

    def observe(
        self, params: Mapping[str, Any], *, peak_bytes: int | None = None, out_of_memory: bool = False
    ) -> Observation:
        """Take into account what really happened to a launched trial.

        A configuration that ran out of memory is vetoed from now on, at this batch size and above.

        Args:
            params: Its hyperparameters.
            peak_bytes: Measured device peak in bytes, if there is one.
            out_of_memory: Whether it ran out of memory.

        """
        verdict = self.check(params)
        if out_of_memory:
            batch_size, rest = self._split(params)
            key = _key(rest)
            self._out_of_memory[key] = min(batch_size, self._out_of_memory.get(key, batch_size))
        observation = Observation(dict(params), verdict.peak_bytes, peak_bytes, out_of_memory)
        self.observations.append(observation)
        return observation

    def inert_parameters(self) -> dict[str, str]:
        """Return, for each numeric parameter, ``inert``, ``changes memory`` or ``not known``, as learnt so far."""
        return self._libraries[0].inert.summary() if self._libraries else {}

    @property
    def counts(self) -> TraceCounts:
        """How the requests were answered so far, summed over the cards."""
        total = TraceCounts()
        for library in self._libraries:
            total.num_traces += library.counts.num_traces
            total.num_loaded += library.counts.num_loaded
            total.num_inferred += library.counts.num_inferred
            total.num_failed += library.counts.num_failed
            total.trace_seconds += library.counts.trace_seconds
        return total

    def close(self) -> None:
        """End the workers. What is known stays, and a later check starts them again."""
        askers, self._askers = self._askers, None
        if askers is not None:
            askers.shutdown(wait=True, cancel_futures=True)
        for library in self._libraries:
            library.close()

    def __enter__(self) -> MemoryGuard:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        state = {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_libraries", "_verdicts", "_largest", "_lock", "_askers")
        }
        return _revive, (self._token, state)

    def __deepcopy__(self, _memo: dict[int, Any]) -> MemoryGuard:
        return self

    def _unknown(self, reason: str) -> Verdict:
        if reason not in self._reasons:  # Once each: a search meets the same a thousand times.
            self._reasons.add(reason)
            logger.warning("a configuration cannot be judged: %s", reason)
        return Verdict.unknown(reason)

    def _split(self, params: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        kept = {name: value for name, value in params.items() if name not in self.ignored}
        value, rest = take({**self.fixed_params, **kept}, self.batch_param)
        return batch_size_of(value), plain_value(rest)

    def _batch_hint(self, params: Mapping[str, Any]) -> int:
        try:
            return self._split(params)[0]
        except UsageError:
            return 8

    def _judge(self, index: int, rest: Mapping[str, Any], batch_size: int) -> Verdict:
        footprint = self._libraries[index].find(rest, batch_size)
        key = (index, footprint.signature, batch_size)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = footprint.verdict(batch_size)
        return verdict

    def _search(self, index: int, rest: Mapping[str, Any], batch_size: int) -> BatchSizeResult:
        footprint = self._libraries[index].find(rest, batch_size)
        key = (index, footprint.signature)
        result = self._largest.get(key)
        if result is None:
            result = self._largest[key] = largest_batch(
                lambda batch: _outcome(footprint, batch), certainly_exceeds=footprint.certainly_exceeds
            )
        return result

    def _corrected(self, verdict: Verdict, rest: Mapping[str, Any], batch_size: int) -> Verdict:
        """Return the verdict in the light of what launched trials met."""
        if not self._out_of_memory or verdict.state is VerdictState.EXCEEDS:
            return verdict
        smallest = self._out_of_memory.get(_key(rest))
        if smallest is None or batch_size < smallest:
            return verdict
        limit = verdict.limit_bytes or 0
        return Verdict(
            state=VerdictState.EXCEEDS,
            peak_bytes=max(verdict.peak_bytes or 0, limit),
            limit_bytes=limit,
            reason=f"ran out of memory at batch size {smallest} when it was launched",
        )


def _with_advice(reason: str) -> str:
    if "has no hyperparameter" in reason or "unexpected keyword argument" in reason:
        return f"{reason}; if the workload does not need it, pass ignore=[...] with its name to MemoryGuard"
    return reason


def _key(rest: Mapping[str, Any]) -> str:
    return json.dumps(find_leaves(rest))


def _outcome(footprint: Footprint, batch_size: int) -> Outcome:
    try:
        return footprint.verdict(batch_size)
    except WorkloadError as error:
        return CannotRun(str(error))


def _best(verdicts: list[Verdict]) -> Verdict:
    """Return the verdict for a job that may take any of several cards."""
    fitting = [verdict for verdict in verdicts if verdict.state is VerdictState.FITS]
    if fitting:
        return min(fitting, key=lambda verdict: verdict.limit_bytes or 0)
    unknown = [verdict for verdict in verdicts if verdict.state is VerdictState.UNKNOWN]
    return unknown[0] if unknown else min(verdicts, key=lambda verdict: verdict.violation or 0.0)


def _names(gpu: str | Iterable[str] | None) -> tuple[Any, ...]:
    if gpu is None:
        return ()
    return (gpu,) if isinstance(gpu, str) or not isinstance(gpu, Iterable) else tuple(gpu)


def _revive(token: str, state: dict[str, Any]) -> MemoryGuard:
    known = _live.get(token)
    if known is not None:
        return known
    guard = MemoryGuard.__new__(MemoryGuard)
    guard.__dict__.update(state)
    guard._start()
    return guard


def _estimator_tracers(
    workload: Any, gpus: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[TracerFactory, ...]:
    from dnnmem_tune.guard.tracing import EstimatorTracers  # The estimator is not needed with other tracers.

    return tuple(EstimatorTracers(workload, gpu, dict(options)) for gpu in gpus)
