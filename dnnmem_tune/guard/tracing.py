"""The estimator behind a guard: one worker for many configurations, footprints that take little room."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dnnmem_tune.api import EstimationSession
from dnnmem_tune.api.arguments import plain_params
from dnnmem_tune.decisions.verdict import Verdict, verdict_of
from dnnmem_tune.guard.keys import find_leaves, key_of
from dnnmem_tune.ir.encoding import decode_trace, encode_trace
from dnnmem_tune.ir.trace import MemoryTrace

if TYPE_CHECKING:
    from dnnmem_tune.estimate.devices import DeviceProfile
    from dnnmem_tune.estimate.estimator import Estimator
    from dnnmem_tune.frontends.traced import TracedWorkload

_ESTIMATORS_KEPT = 32
"""Estimators ready to answer. Each holds a few megabytes; the other traces are kept compressed."""


class EstimatorTracers:
    """Tracers of one workload on one card.

    Args:
        workload: As for ``dnnmem_tune.estimate``.
        gpu: As for ``dnnmem_tune.estimate``.
        options: Options of an `EstimationSession`.

    """

    def __init__(self, workload: Any, gpu: str | DeviceProfile, options: Mapping[str, Any]) -> None:
        self.workload = workload
        self.gpu = gpu
        self.options = dict(options)
        # What cannot be meant is refused here: later it would make every verdict unknown.
        EstimationSession(workload, **self.options).device(gpu)

    def identity(self) -> str:
        """Return source, versions and card."""
        session = EstimationSession(self.workload, **self.options)
        device = session.device(self.gpu)
        fingerprint = session.traced(device, {}).fingerprint
        facts = [session.name, fingerprint, device.compute_capability, device.total_bytes, device.num_sms]
        return json.dumps(facts)

    def make(self) -> EstimatorTracer:
        """Return a tracer with a worker of its own."""
        return EstimatorTracer(EstimationSession(self.workload, **self.options), self.gpu)


class EstimatorTracer:
    """Traces configurations with one worker process."""

    def __init__(self, session: EstimationSession, gpu: str | DeviceProfile) -> None:
        self._session = session
        self._device = session.device(gpu)
        self._first: TracedWorkload | None = None
        self._estimators: OrderedDict[str, Estimator] = OrderedDict()

    def trace(self, params: Mapping[str, Any], batch_size: int) -> EstimatorFootprint:
        """Return the memory of a configuration, traced unless it is in the trace cache."""
        traced = self._open(params)
        trace = traced.trace_for(max(2, batch_size))
        if traced.unfitted_reason:
            return EstimatorFootprint(self, params, f"alone-{key_of(find_leaves(params))}", None)
        packed = zlib.compress(json.dumps(encode_trace(trace)).encode(), 1)
        return EstimatorFootprint(self, params, signature_of(trace), packed)

    def load(self, document: Any, params: Mapping[str, Any]) -> EstimatorFootprint:
        """Return a footprint that takes its trace from the trace cache when it is asked."""
        return EstimatorFootprint(self, document["params"], document["signature"], None)

    def close(self) -> None:
        """End the worker."""
        if self._first is not None:
            self._first.close()

    def estimator(self, footprint: EstimatorFootprint, batch_size: int) -> Estimator:
        """Return what estimates a configuration at a batch size.

        Raises:
            DnnMemError: If a trace is needed for that and fails.

        """
        if batch_size == 1:  # Batch 1 has a trace of its own; many workloads do something else there.
            return self._session.estimator_of(self._open(footprint.params).trace_for(1), self._device)
        ready = self._estimators.get(footprint.signature)
        if ready is not None:
            return ready
        if footprint.packed is not None:
            trace = decode_trace(json.loads(zlib.decompress(footprint.packed)))
        else:
            traced = self._open(footprint.params)
            trace = traced.trace_for(batch_size)
            if traced.unfitted_reason:
                return self._session.estimator_of(trace, self._device)
        self._estimators[footprint.signature] = estimator = self._session.estimator_of(trace, self._device)
        while len(self._estimators) > _ESTIMATORS_KEPT:
            self._estimators.popitem(last=False)
        return estimator

    def _open(self, params: Mapping[str, Any]) -> TracedWorkload:
        plain = plain_params(params)
        if self._first is None:
            self._first = self._session.traced(self._device, plain)
            return self._first
        return self._first.with_params(plain)


class EstimatorFootprint:
    """The memory of one configuration on one card."""

    def __init__(
        self, tracer: EstimatorTracer, params: Mapping[str, Any], signature: str, packed: bytes | None
    ) -> None:
        self._tracer = tracer
        self.params = dict(params)
        self.signature = signature
        self.packed = packed

    def verdict(self, batch_size: int) -> Verdict:
        """Return whether it fits: a replay of the trace."""
        return verdict_of(self._tracer.estimator(self, batch_size).at(batch_size))

    def certainly_exceeds(self, batch_size: int) -> bool:
        """Compare live bytes with the card, without a replay."""
        if self.packed is None or batch_size == 1:
            return False
        estimator = self._tracer.estimator(self, batch_size)
        return estimator.lower_bound(batch_size) > estimator.capacity_bytes

    def encode(self) -> Any:
        """Return what finds the trace in the trace cache."""
        return {"params": self.params, "signature": self.signature}


def signature_of(trace: MemoryTrace) -> str:
    """Return a hash of all that decides about memory: events, sizes, and what is not known."""
    document = encode_trace(trace)
    coverage = trace.coverage
    sizes = [[size, optional] for size, _category, _operation, optional in document["storages"]]
    facts = [document["events"], sizes, sorted(coverage.unknown_operators), sorted(coverage.bounded)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
