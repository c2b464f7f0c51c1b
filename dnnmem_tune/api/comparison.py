"""One workload on several cards: the smallest that fits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dnnmem_tune.api.arguments import batch_size_of
from dnnmem_tune.api.search import Bounds, search_batch_size
from dnnmem_tune.decisions.comparison import ComparedDevice, Comparison
from dnnmem_tune.decisions.verdict import Verdict, verdict_of
from dnnmem_tune.errors import UsageError

if TYPE_CHECKING:
    from dnnmem_tune.api.session import EstimationSession
    from dnnmem_tune.estimate.devices import DeviceProfile


def compare_devices(
    session: EstimationSession,
    devices: Iterable[DeviceProfile],
    params: dict[str, Any],
    batch_size: int | None,
    bounds: Bounds,
) -> Comparison:
    """Return what each card can do, in ascending order of its memory.

    Raises:
        UsageError: If no card is given.
        WorkloadError: If the workload cannot be run.
        TraceError: If it cannot be traced.

    """
    size = batch_size_of(batch_size) if batch_size is not None else None
    # Cards of one capability share their traces.
    chosen = sorted(devices, key=lambda device: device.compute_capability)
    if not chosen:
        raise UsageError("compare: no card is given; name at least one, or none at all for the whole catalogue")
    compared = [
        _at_batch(session, device, params, size) if size is not None else _largest(session, device, params, bounds)
        for device in chosen
    ]
    compared.sort(key=lambda card: (card.device.total_bytes, card.device.name))
    return Comparison(batch_size=size, devices=tuple(compared))


def _at_batch(
    session: EstimationSession, device: DeviceProfile, params: dict[str, Any], batch_size: int
) -> ComparedDevice:
    try:
        estimate = session.estimate(batch_size, device, params)
    except UsageError as error:
        return _too_small(device, error)
    return ComparedDevice(device=device, estimate=estimate, verdict=verdict_of(estimate))


def _largest(
    session: EstimationSession, device: DeviceProfile, params: dict[str, Any], bounds: Bounds
) -> ComparedDevice:
    try:
        result = search_batch_size(session, device, params, bounds)
    except UsageError as error:
        return _too_small(device, error)
    verdict = result.verdict or result.verdict_at(result.first_too_large) or Verdict.unknown(result.reason)
    return ComparedDevice(device=device, estimate=result.estimate, verdict=verdict, largest=result)


def _too_small(device: DeviceProfile, error: UsageError) -> ComparedDevice:
    """A margin that leaves nothing of a small card is no mistake while larger ones are compared with it."""
    return ComparedDevice(
        device=device,
        estimate=None,
        verdict=Verdict.unknown(str(error)),
    )
