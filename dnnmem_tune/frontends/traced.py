"""A workload that has been traced: one object that has a trace for every batch size.

The first question costs three traces: two that are fitted and a third, at the batch size
asked for, that must confirm the fit. After that every batch size is free. Batch 1 has a
trace of its own, and a workload whose traces do not fit is traced at each batch size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dnnmem_tune.errors import DnnMemError, TraceError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.ir.fit import Mismatch, confirms, fit_traces
from dnnmem_tune.ir.trace import MemoryTrace

FITTED_AT = (8, 16)
"""Multiples of eight, since workloads that split their batch run at these."""

_QUADRATIC_AT = 24
_CHECKED_AT = 12
"""Where a fit is checked when the batch size asked for was used to make it."""


class BatchRecorder(Protocol):
    """What a traced workload needs of a front-end."""

    def attempt(self, requests: Sequence[RecordRequest]) -> list[MemoryTrace | DnnMemError]:
        """Return for each request its trace, or the error that it ended with."""

    def close(self) -> None:
        """End the worker."""


class TraceStore(Protocol):
    """Traces kept from earlier runs."""

    def load(self, key: dict[str, Any]) -> MemoryTrace | None:
        """Return the trace under ``key``, or nothing."""

    def save(self, key: dict[str, Any], trace: MemoryTrace) -> None:
        """Keep ``trace`` under ``key``."""


@dataclass(frozen=True, slots=True)
class _Unfitted:
    reason: str


class TracedWorkload:
    """Traces of one workload with one set of hyperparameters, for every batch size.

    Safe to use from several threads; a context manager that ends the worker.
    """

    def __init__(
        self,
        recorder: BatchRecorder,
        request: RecordRequest,
        *,
        store: TraceStore | None = None,
        fingerprint: str = "",
    ) -> None:
        self._recorder = recorder
        self._request = request
        self._store = store
        self._fingerprint = fingerprint
        self._exact: dict[int, MemoryTrace | DnnMemError] = {}
        self._fit: MemoryTrace | _Unfitted | None = None
        self._lock = threading.RLock()
        self.num_traces = 0
        """Traces recorded so far, those from the store not counted."""

    def __enter__(self) -> TracedWorkload:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker process."""
        self._recorder.close()

    def with_params(self, params: dict[str, Any]) -> TracedWorkload:
        """Return the same workload with other hyperparameters; both use one worker, which either may close.

        A worker that has torch imported traces another configuration in a fraction of the time
        that it takes to start one.
        """
        request = replace(self._request, params=params)
        return TracedWorkload(self._recorder, request, store=self._store, fingerprint=self._fingerprint)

    @property
    def fingerprint(self) -> str:
        """What every trace depends on besides the request: source, versions, recorder."""
        return self._fingerprint

    @property
    def unfitted_reason(self) -> str:
        """Why each batch size needs a trace of its own; empty where one trace serves all."""
        return self._fit.reason if isinstance(self._fit, _Unfitted) else ""

    def trace_for(self, batch_size: int) -> MemoryTrace:
        """Return a trace that holds at ``batch_size``; its sizes may be those of every batch size.

        Args:
            batch_size: At least 1.

        Raises:
            WorkloadError: If the workload raises at this batch size.
            TraceError: If it cannot be traced.

        """
        with self._lock:
            if batch_size == 1:
                return self.exact_trace(1)
            if self._fit is None:
                self._fit = self._load_fit() or self._make_fit(batch_size)
            if isinstance(self._fit, MemoryTrace):
                return self._fit
            return self.exact_trace(batch_size)

    def exact_trace(self, batch_size: int) -> MemoryTrace:
        """Return the trace of a run at exactly this batch size; raises as ``trace_for`` does."""
        (outcome,) = self.exact_traces((batch_size,))
        if isinstance(outcome, DnnMemError):
            raise outcome
        return outcome

    def exact_traces(self, batch_sizes: Sequence[int]) -> list[MemoryTrace | DnnMemError]:
        """Return the traces of runs at exactly these batch sizes, made side by side, or the errors they end with.

        Raises:
            DnnMemError: If the worker cannot be started, or the workload cannot be loaded or hangs.

        """
        with self._lock:
            return self._traces(batch_sizes)

    def confirm(self, batch_size: int) -> bool:
        """Trace at ``batch_size`` and say whether the fit holds there; from then on it is not used if not."""
        with self._lock:
            if not isinstance(self._fit, MemoryTrace):
                return True
            mismatch = confirms(self._fit, batch_size, self.exact_trace(batch_size))
            if mismatch is not None:
                self._fit = _Unfitted(mismatch.reason)
            return mismatch is None

    def _make_fit(self, asked: int) -> MemoryTrace | _Unfitted:
        checked = _CHECKED_AT if asked in FITTED_AT else asked
        outcomes = self._traces((*FITTED_AT, checked))
        traces = {
            batch_size: outcome
            for batch_size, outcome in zip((*FITTED_AT, checked), outcomes, strict=True)
            if isinstance(outcome, MemoryTrace)
        }
        if len(traces) < 3:
            return self._unfittable(outcomes)
        fitted = fit_traces({batch_size: traces[batch_size] for batch_size in FITTED_AT})
        if isinstance(fitted, Mismatch) or confirms(fitted, checked, traces[checked]) is not None:
            fitted = self._make_quadratic_fit(traces, checked)
        if isinstance(fitted, Mismatch):
            return _Unfitted(fitted.reason)
        fitted = replace(fitted, batch_sizes=(*fitted.batch_sizes, checked))
        self._save("fitted", fitted)
        return fitted

    def _make_quadratic_fit(self, traces: dict[int, MemoryTrace], checked: int) -> MemoryTrace | Mismatch:
        third = _QUADRATIC_AT if checked != _QUADRATIC_AT else _QUADRATIC_AT + 8
        (outcome,) = self._traces((third,))
        if isinstance(outcome, DnnMemError):
            return Mismatch(str(outcome))
        fitted = fit_traces({**{batch_size: traces[batch_size] for batch_size in FITTED_AT}, third: outcome})
        if isinstance(fitted, Mismatch):
            return fitted
        return confirms(fitted, checked, traces[checked]) or fitted

    def _unfittable(self, outcomes: list[MemoryTrace | DnnMemError]) -> _Unfitted:
        """Some batch size cannot run: what runs is traced one by one, unless nothing does."""
        errors = [outcome for outcome in outcomes if isinstance(outcome, DnnMemError)]
        if len(errors) == len(outcomes):
            raise errors[-1]
        return _Unfitted(f"the workload does not run at every batch size ({errors[0]})")

    def _traces(self, batch_sizes: Sequence[int]) -> list[MemoryTrace | DnnMemError]:
        for batch_size in batch_sizes:
            if batch_size not in self._exact:
                trace = self._load(batch_size)
                if trace is not None:
                    self._exact[batch_size] = trace
        missing = list(dict.fromkeys(size for size in batch_sizes if size not in self._exact))
        if missing:
            outcomes = self._recorder.attempt([replace(self._request, batch_size=size) for size in missing])
            self.num_traces += len(missing)
            for size, outcome in zip(missing, outcomes, strict=True):
                if isinstance(outcome, MemoryTrace):
                    outcome = replace(outcome, batch_sizes=(size,))
                    self._save(size, outcome)
                elif type(outcome) is TraceError:
                    raise outcome  # it hung or died: asking again at another batch size would too
                self._exact[size] = outcome
        return [self._exact[size] for size in batch_sizes]

    def _key(self, batch_size: int | str) -> dict[str, Any]:
        return {
            "fingerprint": self._fingerprint,
            "workload": self._request.workload,
            "params": self._request.params,
            "compute_capability": list(self._request.compute_capability),
            "num_steps": self._request.num_steps,
            "batch_size": batch_size,
        }

    def _load_fit(self) -> MemoryTrace | None:
        return self._load("fitted")

    def _load(self, batch_size: int | str) -> MemoryTrace | None:
        return self._store.load(self._key(batch_size)) if self._store is not None else None

    def _save(self, batch_size: int | str, trace: MemoryTrace) -> None:
        if self._store is not None:
            self._store.save(self._key(batch_size), trace)


Opener = Callable[..., TracedWorkload]
