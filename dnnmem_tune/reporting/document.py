"""Answers as JSON values. The schema is described in ``docs/json.md``.

Every size is a whole number of bytes and every key that holds one ends in ``_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dnnmem_tune.decisions.accumulation import AccumulationPlan
from dnnmem_tune.decisions.batch_size import BatchSizeResult, ProbedValue
from dnnmem_tune.decisions.comparison import ComparedDevice, Comparison
from dnnmem_tune.decisions.remedies import Remedy
from dnnmem_tune.decisions.verdict import Verdict, verdict_of
from dnnmem_tune.estimate.devices import DeviceProfile
from dnnmem_tune.estimate.report import Breakdown, Interval, MemoryEstimate

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys do not raise it."""

Document = dict[str, Any]


def estimate_document(
    estimate: MemoryEstimate, *, workload: str, params: Mapping[str, Any], remedies: Iterable[Remedy] = ()
) -> Document:
    """Return an estimate with everything that is known about it."""
    return {
        **_header("estimate", workload, params, estimate.device),
        **_estimate(estimate),
        "remedies": [_remedy(remedy) for remedy in remedies],
    }


def batch_size_document(
    result: BatchSizeResult,
    device: DeviceProfile,
    *,
    workload: str,
    params: Mapping[str, Any],
    batch_size: int | None = None,
    remedies: Iterable[Remedy] = (),
) -> Document:
    """Return what a search found; ``batch_size`` is the fixed one where something else was searched."""
    limits = [
        probe.outcome.limit_bytes
        for probe in result.probes
        if isinstance(probe.outcome, Verdict) and probe.outcome.limit_bytes is not None
    ]
    return {
        **_header("max_batch_size", workload, params, device),
        "searched": result.searched,
        "batch_size": batch_size,
        "largest_batch": result.largest_batch,
        "first_too_large": result.first_too_large,
        "reason": result.reason,
        "limit_bytes": limits[0] if limits else None,
        "headroom_bytes": result.headroom_bytes,
        "peaks": peaks_of(result.estimate) if result.estimate is not None else None,
        "smallest_runnable": result.smallest_runnable,
        "step": result.step,
        "maximum": result.maximum,
        "maximum_reached": result.maximum_reached,
        "monotone": result.monotone,
        "also_fit_above": list(result.also_fit_above),
        "estimate": _estimate(result.estimate) if result.estimate is not None else None,
        "accumulation": [_plan(plan) for plan in result.plans],
        "remedies": [_remedy(remedy) for remedy in remedies],
        "probes": [_probe(probe) for probe in result.probes],
    }


def comparison_document(comparison: Comparison, *, workload: str, params: Mapping[str, Any]) -> Document:
    """Return what each card can do, in ascending order of memory."""
    smallest = comparison.smallest
    return {
        "schema": SCHEMA,
        "kind": "compare",
        "workload": workload,
        "params": dict(params),
        "batch_size": comparison.batch_size,
        "smallest_gpu": smallest.device.name if smallest is not None else None,
        "gpus": [_compared(compared) for compared in comparison.devices],
    }


def devices_document(devices: Iterable[DeviceProfile]) -> Document:
    """Return cards of the catalogue."""
    return {"schema": SCHEMA, "kind": "gpus", "gpus": [device_of(device) for device in devices]}


def peaks_of(estimate: MemoryEstimate) -> Document:
    """Return the four peaks in bytes."""
    return {
        "requested_bytes": estimate.peak_requested_bytes,
        "allocated_bytes": estimate.peak_allocated_bytes,
        "reserved_bytes": estimate.peak_reserved_bytes,
        "device_bytes": estimate.peak_device_bytes,
    }


def device_of(device: DeviceProfile) -> Document:
    """Return a card."""
    return {
        "name": device.name,
        "aliases": list(device.aliases),
        "total_bytes": device.total_bytes,
        "context_bytes": device.context_bytes,
        "context_uncertainty_bytes": device.context_uncertainty_bytes,
        "occupied_bytes": device.occupied_bytes,
        "usable_bytes": device.usable_bytes,
        "compute_capability": "{}.{}".format(*device.compute_capability),
        "num_sms": device.num_sms,
        "source": device.source,
    }


def _header(kind: str, workload: str, params: Mapping[str, Any], device: DeviceProfile) -> Document:
    return {
        "schema": SCHEMA,
        "kind": kind,
        "workload": workload,
        "params": dict(params),
        "gpu": device_of(device),
    }


def _estimate(estimate: MemoryEstimate) -> Document:
    verdict = verdict_of(estimate)
    return {
        "batch_size": estimate.batch_size,
        "fits": estimate.fits,
        "reason": verdict.reason,
        "violation": verdict.violation,
        "limit_bytes": estimate.limit_bytes,
        "headroom_bytes": estimate.headroom_bytes,
        "peaks": peaks_of(estimate),
        "breakdown": _breakdown(estimate.breakdown()),
        "interval": _interval(estimate.interval()),
        "steps": [
            {
                "name": step.name,
                "requested_bytes": step.requested_bytes,
                "allocated_bytes": step.allocated_bytes,
                "reserved_bytes": step.reserved_bytes,
            }
            for step in estimate.steps()
        ],
        "cache_releases": estimate.num_retries,
        "skipped_workspaces": estimate.num_skipped_workspaces,
        "coverage": {
            "num_operations": estimate.coverage.num_operations,
            "unknown_operators": dict(estimate.coverage.unknown_operators),
            "host_reads": dict(estimate.coverage.host_reads),
            "bounded": dict(estimate.coverage.bounded),
            "notes": list(estimate.coverage.notes),
        },
        "provenance": {
            "framework": estimate.provenance.framework,
            "recorder": estimate.provenance.recorder,
            "traced_batch_sizes": list(estimate.provenance.traced_batch_sizes),
            "allocator": estimate.provenance.allocator,
            "conv_workspace": estimate.provenance.conv_workspace,
            "device": estimate.provenance.device,
        },
    }


def _breakdown(breakdown: Breakdown) -> Document:
    return {
        "at_peak_of": "allocated_bytes",
        "operation": breakdown.operation,
        "module": breakdown.module,
        "categories": {str(category): nbytes for category, nbytes in breakdown.categories.items()},
        "modules": dict(breakdown.modules),
        "internal_fragmentation_bytes": breakdown.internal_fragmentation_bytes,
        "allocator_reservation_bytes": breakdown.allocator_reservation_bytes,
        "context_bytes": breakdown.context_bytes,
        "device_bytes": breakdown.device_bytes,
    }


def _interval(interval: Interval) -> Document:
    return {
        "low_bytes": interval.low_bytes,
        "high_bytes": interval.high_bytes,
        "reasons": [
            {
                "cause": reason.cause,
                "below_bytes": reason.below_bytes,
                "above_bytes": reason.above_bytes,
                "text": reason.text,
            }
            for reason in interval.reasons
        ],
    }


def _verdict(verdict: Verdict) -> Document:
    return {
        "verdict": str(verdict.state),
        "peak_device_bytes": verdict.peak_bytes,
        "limit_bytes": verdict.limit_bytes,
        "headroom_bytes": verdict.headroom_bytes,
        "violation": verdict.violation,
        "reason": verdict.reason,
    }


def _probe(probe: ProbedValue) -> Document:
    if isinstance(probe.outcome, Verdict):
        return {"value": probe.value, **_verdict(probe.outcome)}
    return {"value": probe.value, "verdict": "cannot run", "reason": probe.outcome.reason}


def _plan(plan: AccumulationPlan) -> Document:
    return {
        "target_batch": plan.target_batch,
        "micro_batch": plan.micro_batch,
        "steps": plan.steps,
        "effective_batch": plan.effective_batch,
        "exact": plan.exact,
        "traced": plan.traced,
        "text": plan.text,
    }


def _remedy(remedy: Remedy) -> Document:
    change = remedy.change
    return {
        "text": change.text,
        "enough": remedy.enough,
        "params": dict(change.params),
        "batch_size": change.batch_size,
        "gpu": change.gpu,
        **_verdict(remedy.verdict),
    }


def _compared(compared: ComparedDevice) -> Document:
    largest = compared.largest
    return {
        "gpu": device_of(compared.device),
        "fits": {"fits": True, "exceeds": False}.get(str(compared.verdict.state)),
        "reason": compared.verdict.reason,
        "limit_bytes": compared.verdict.limit_bytes,
        "headroom_bytes": compared.verdict.headroom_bytes,
        "peaks": peaks_of(compared.estimate) if compared.estimate is not None else None,
        "largest_batch": largest.largest_batch if largest is not None else None,
        "first_too_large": largest.first_too_large if largest is not None else None,
    }
