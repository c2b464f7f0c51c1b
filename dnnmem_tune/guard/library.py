"""Footprints on demand: each configuration is traced once, by one worker, in one process.

A request goes through: what is in memory, what other processes left on disk, what follows from the
parameters known to be inert, and at last a trace in the pool. Any number of threads may ask.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any

from dnnmem_tune.errors import DnnMemError
from dnnmem_tune.guard.footprint import Footprint, Tracer, TracerFactory
from dnnmem_tune.guard.inert import InertParameters, TracedRecord, class_of, regime_of
from dnnmem_tune.guard.keys import Leaves, find_leaves, key_of, nest, put
from dnnmem_tune.guard.store import TraceStore

FIRST_CHECKED_INFERENCE = 32
"""The first configuration that is traced although its memory could be concluded; then each eighth power on."""

Ranges = Mapping[str, tuple[float, float]]
"""Continuous parameters with the smallest and the largest value that will be asked for."""


@dataclass(slots=True)
class TraceCounts:
    """How the requests were answered."""

    num_traces: int = 0
    """Traces made by this process."""

    num_loaded: int = 0
    """Configurations that another process had traced."""

    num_inferred: int = 0
    """Configurations that differ from a traced one in inert parameters only."""

    num_failed: int = 0
    """Configurations that could not be traced."""

    trace_seconds: float = 0.0
    """Time spent in traces, summed over the workers."""


class FootprintLibrary:
    """The footprints of one workload on one card.

    Args:
        factory: Makes the tracers.
        cache_dir: Folder shared with other processes; None to share nothing.
        workers: Number of traces made at once; at least 1.

    """

    def __init__(self, factory: TracerFactory, *, cache_dir: Path | None, workers: int) -> None:
        self._factory = factory
        self._cache_dir = cache_dir
        self._workers = workers
        self.ranges: dict[str, tuple[float, float]] = {}
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._store: TraceStore | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._tracers: LifoQueue[Tracer] = LifoQueue()
        self._all_tracers: list[Tracer] = []
        self._loader: Tracer | None = None
        self._pending: dict[Leaves, Future[Footprint]] = {}
        self._answers: dict[Leaves, Footprint | DnnMemError] = {}
        self._inferred: dict[Leaves, frozenset[str]] = {}
        self._by_signature: dict[str, Footprint] = {}
        self._next_checked = FIRST_CHECKED_INFERENCE
        self._to_check: set[Leaves] = set()
        self.counts = TraceCounts()
        self.inert = InertParameters()

    def find(self, params: Mapping[str, Any], batch_size: int) -> Footprint:
        """Return the footprint of a configuration.

        Args:
            params: Plain hyperparameters, without the batch size.
            batch_size: The batch size that is wanted first.

        Raises:
            DnnMemError: If it cannot be traced; the same error each time, without another try.

        """
        if os.getpid() != self._pid:
            self._start()  # After a fork neither threads nor workers are there.
        leaves = find_leaves(params)
        with self._lock:
            known = self._lookup(leaves)
            future = self._pending.get(leaves)
            if known is None and future is None:
                future = self._submit(leaves, params, batch_size)
        if known is None and future is not None:
            return future.result()
        return _or_raise(known)

    def close(self) -> None:
        """End the workers; what is known stays, and a later request starts them again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        tracers, self._all_tracers, self._tracers = self._all_tracers, [], LifoQueue()
        for tracer in tracers:
            tracer.close()

    def _submit(self, leaves: Leaves, params: Mapping[str, Any], batch_size: int) -> Future[Footprint]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="dnnmem-trace")
        future = self._pool.submit(self._answer, leaves, params, batch_size)
        self._pending[leaves] = future
        return future

    def _lookup(self, leaves: Leaves) -> Footprint | DnnMemError | None:
        """Return what is known without a trace; called with the lock held."""
        answer = self._answers.get(leaves)
        if answer is not None:
            return answer
        self._learn(self._shared.read_new())
        record = self.inert.find_exact(leaves)
        if record is not None:
            footprint = self._load(record, leaves)
            if footprint is not None:
                self.counts.num_loaded += 1
                self._answers[leaves] = footprint
                return footprint
        return self._infer(leaves)

    def _infer(self, leaves: Leaves) -> Footprint | None:
        record = self.inert.find_equal(leaves) if leaves not in self._to_check else None
        footprint = self._load(record, record.leaves) if record is not None else None
        if record is None or footprint is None:
            return None
        if self.counts.num_inferred + 1 == self._next_checked:
            self._next_checked *= 8
            self._to_check.add(leaves)
            return None
        self.counts.num_inferred += 1
        self._answers[leaves] = footprint
        self._inferred[leaves] = frozenset(
            name for (name, mine), (_, theirs) in zip(leaves, record.leaves, strict=True) if mine != theirs
        )
        return footprint

    def _load(self, record: TracedRecord, leaves: Leaves) -> Footprint | None:
        footprint = self._by_signature.get(record.signature)
        if footprint is None:
            document = self._shared.load(record.signature)
            if document is None:
                return None
            if self._loader is None:
                self._loader = self._factory.make()
                self._all_tracers.append(self._loader)
            try:
                footprint = self._loader.load(document, nest(dict(leaves)))
            except (ValueError, KeyError, TypeError):
                return None  # Of another release, or damaged: traced again.
            self._by_signature[record.signature] = footprint
        return footprint

    def _answer(self, leaves: Leaves, params: Mapping[str, Any], batch_size: int) -> Footprint:
        """Trace a configuration, unless it became known meanwhile; runs in the pool."""
        try:
            with self._shared.claim(key_of(leaves)):
                with self._lock:
                    known = self._lookup(leaves)
                if known is None:
                    known = self._probe(leaves, params, batch_size)
                if known is None:
                    known = self._trace(leaves, params, batch_size)
        except DnnMemError as error:
            with self._lock:
                self.counts.num_failed += 1
                self._answers[leaves] = error
            raise
        finally:
            with self._lock:
                self._pending.pop(leaves, None)
        return _or_raise(known)

    def _trace(self, leaves: Leaves, params: Mapping[str, Any], batch_size: int) -> Footprint:
        start = time.perf_counter()
        tracer = self._take_tracer()
        try:
            footprint = tracer.trace(params, batch_size)
        finally:
            self._tracers.put(tracer)
        record = TracedRecord(leaves, footprint.signature)
        self._shared.add(record, footprint.encode())
        with self._lock:
            self.counts.num_traces += 1
            self.counts.trace_seconds += time.perf_counter() - start
            # One object for each signature, so that its size tables are built once.
            footprint = self._by_signature.setdefault(footprint.signature, footprint)
            self._answers[leaves] = footprint
            self._learn([record])
        return footprint

    def _probe(self, leaves: Leaves, params: Mapping[str, Any], batch_size: int) -> Footprint | DnnMemError | None:
        """Trace a known architecture at the ends of its continuous parameters, if that may spare many traces.

        Worth it once an architecture comes back with other continuous values; with both ends and
        one value between traced to the same memory, no other value needs a trace.
        """
        with self._lock:
            neighbour = self.inert.find_neighbour(leaves)
            regime = regime_of(leaves)
            known = self.inert.conclusions(regime)
            ends = {
                name: ends
                for name, value in leaves
                if name in self.ranges
                and name not in known
                and not self.inert.is_contradicted(name, regime)
                and self.inert.is_continuous(name)
                and class_of(value) == "!other number"
                and (ends := _inner_ends(*self.ranges[name])) is not None
            }
        if neighbour is None or not ends:
            return None
        base = _nested_like(params, neighbour.leaves)
        for side in (1, 0):
            together = {name: end[side] for name, end in ends.items()}
            if self._trace_changed(base, together, batch_size) != neighbour.signature and len(ends) > 1:
                for name, value in together.items():
                    self._trace_changed(base, {name: value}, batch_size)
                break
        with self._lock:
            return self._lookup(leaves)

    def _trace_changed(self, base: Mapping[str, Any], changes: Mapping[str, float], batch_size: int) -> str:
        params: Mapping[str, Any] = base
        for name, value in changes.items():
            params = put(params, name, value)
        leaves = find_leaves(params)
        with self._lock:
            record = self.inert.find_exact(leaves)
        return record.signature if record is not None else self._trace(leaves, params, batch_size).signature

    def _learn(self, records: list[TracedRecord]) -> None:
        """Add records, and drop the answers that rested on a conclusion which they contradict."""
        for record in records:
            refuted = self.inert.add(record)
            if refuted:
                wrong = [leaves for leaves, names in self._inferred.items() if not names.isdisjoint(refuted)]
                for leaves in wrong:
                    del self._inferred[leaves]
                    self._answers.pop(leaves, None)

    def _take_tracer(self) -> Tracer:
        # The last one used first: with one request at a time there is one worker, not a pool of them.
        try:
            return self._tracers.get_nowait()
        except Empty:
            tracer = self._factory.make()
            self._all_tracers.append(tracer)
            return tracer

    @property
    def _shared(self) -> TraceStore:
        if self._store is None:
            identity = self._factory.identity() if self._cache_dir is not None else ""
            self._store = TraceStore(self._cache_dir, identity)
        return self._store


def _or_raise(known: Footprint | DnnMemError | None) -> Footprint:
    assert known is not None
    if isinstance(known, DnnMemError):
        raise known
    return known


def _inner_ends(low: float, high: float) -> tuple[float, float] | None:
    """Return two values near the ends of a range that are neither 0 nor 1, which are classes of their own."""
    width = high - low
    if width <= 0:
        return None
    ends = (
        low if class_of(low) == "!other number" else low + width / 1000,
        high if class_of(high) == "!other number" else high - width / 1000,
    )
    return ends if all(class_of(end) == "!other number" for end in ends) else None


def _nested_like(params: Mapping[str, Any], leaves: Leaves) -> dict[str, Any]:
    """Return ``params`` with the numbers of ``leaves``; both belong to one regime."""
    changed = dict(params)
    own = dict(find_leaves(params))
    for name, value in leaves:
        if own[name] != value:
            changed = put(changed, name, value)
    return changed
