"""What several cards can do with one job, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnnmem_tune.decisions.batch_size import BatchSizeResult
from dnnmem_tune.decisions.verdict import Verdict, VerdictState

if TYPE_CHECKING:
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
        return self.verdict.state is VerdictState.FITS


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
