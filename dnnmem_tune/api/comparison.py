"""One workload on several cards: the smallest that fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dnnmem_tune.api.arguments import batch_size_of
from dnnmem_tune.api.search import Bounds, search_batch_size
from dnnmem_tune.decisions.batch_size import BatchSizeResult
from dnnmem_tune.decisions.verdict import Verdict, verdict_of
from dnnmem_tune.errors import UsageError

if TYPE_CHECKING:
    from dnnmem_tune.api.session import EstimationSession
    from dnnmem_tune.estimate.devices import DeviceProfile
    from dnnmem_tune.estimate.report import MemoryEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedDevice:
    """What one card can do."""

    device: DeviceProfile

    estimate: MemoryEstimate | None
    """At the batch size asked for, or at the largest that fits where none was; None where none fits
    or the card cannot be estimated."""

    verdict: Verdict
    """On the batch size asked for, or on the smallest that runs where none was."""

    largest: BatchSizeResult | None = None
    """The largest batch that fits; None where a batch size was asked for."""

    @property
    def fits(self) -> bool:
        """Whether the job is known to fit."""
        return self.verdict.state == "fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Cards in ascending order of memory."""

    batch_size: int | None
    """The batch size asked for; None where the largest of each card was."""

    devices: tuple[ComparedDevice, ...]

    @property
    def smallest(self) -> ComparedDevice | None:
        """The card with the least memory that fits; None where none does."""
        return next((compared for compared in self.devices if compared.fits), None)


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
    ordered = sorted(devices, key=lambda device: (device.total_bytes, device.name))
    if not ordered:
        raise UsageError("compare: no card is given; name at least one, or none at all for the whole catalogue")
    compared = [
        _at_batch(session, device, params, size) if size is not None else _largest(session, device, params, bounds)
        for device in ordered
    ]
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
