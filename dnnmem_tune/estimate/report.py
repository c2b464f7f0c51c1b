"""What an estimate says: peaks, verdict, breakdown, interval, coverage, provenance.

Definitions. *Requested* bytes are what the framework asks its allocator for; *allocated*
bytes are those requests rounded to blocks (``torch.cuda.max_memory_allocated``);
*reserved* bytes are what the allocator holds of the device, cache included
(``torch.cuda.max_memory_reserved``); *device* bytes are reserved plus everything outside
the allocator, as ``nvidia-smi`` shows them. Each peak is the largest value over the whole
job, and two peaks may lie at different events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from dnnmem_tune.allocators.replay import Outcome
from dnnmem_tune.estimate.devices import DeviceProfile
from dnnmem_tune.ir.trace import Category, Coverage

PeakName = Literal["allocated", "reserved"]
"""At which peak a breakdown is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Everything that occupies the device at one event. The parts add up to ``device_bytes``."""

    event: int
    """Index into the trace's events; the state is the one after it."""

    operation: str
    """Operator that allocated at this event."""

    module: str
    """Path of the module that called it; empty outside any."""

    categories: Mapping[Category, int]
    """Requested bytes by category, largest first."""

    modules: Mapping[str, int]
    """Requested bytes by the module that requested them, largest first; the same bytes as in ``categories``."""

    internal_fragmentation_bytes: int
    """Allocated less requested: rounding, and remainders too small to split off."""

    allocator_reservation_bytes: int
    """Reserved less allocated: cached free blocks, and free space between blocks."""

    context_bytes: int
    """CUDA context, loaded kernels, and what else lies outside the allocator."""

    @property
    def requested_bytes(self) -> int:
        """Bytes requested and not yet given back."""
        return sum(self.categories.values())

    @property
    def allocated_bytes(self) -> int:
        """Bytes in blocks handed out."""
        return self.requested_bytes + self.internal_fragmentation_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the allocator holds of the device."""
        return self.allocated_bytes + self.allocator_reservation_bytes

    @property
    def device_bytes(self) -> int:
        """Bytes of the device in use."""
        return self.reserved_bytes + self.context_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that is not known, and how far it can move the device peak."""

    cause: str
    """Such as ``context`` or ``convolution workspace``."""

    below_bytes: int
    """How far the peak may lie below the estimate by this cause; at least 0."""

    above_bytes: int
    """How far it may lie above; at least 0."""

    text: str
    """One sentence for a reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where the device peak lies if every named cause is at its worst; causes not named are not in it."""

    low_bytes: int
    """Device peak with every cause at its lower end."""

    high_bytes: int
    """Device peak with every cause at its upper end."""

    reasons: tuple[Reason, ...]
    """The causes; those that move nothing are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPeak:
    """Peaks within one part of the job."""

    name: str
    """As the trace marks it: ``build``, ``step 0``, ``step 1``, ..."""

    requested_bytes: int
    """Largest number of requested bytes."""

    allocated_bytes: int
    """Largest number of allocated bytes."""

    reserved_bytes: int
    """Largest number of reserved bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """How an estimate came about, so that it can be repeated and judged."""

    framework: str
    """Framework and release that was traced."""

    recorder: str
    """How the trace was made."""

    traced_batch_sizes: tuple[int, ...]
    """Batch sizes that were really traced; the estimate's own is among them or follows from the fit."""

    allocator: str
    """Policy of the simulated allocator."""

    conv_workspace: str
    """Model of the convolution workspace."""

    device: str
    """Where the device's figures come from."""


class Explainer(Protocol):
    """What can say more about an estimate, at the price of another replay or two."""

    def breakdown(self, estimate: MemoryEstimate, peak: PeakName) -> Breakdown:
        """Return what occupies the device at a peak."""

    def interval(self, estimate: MemoryEstimate) -> Interval:
        """Return where the device peak can lie."""

    def steps(self, estimate: MemoryEstimate) -> tuple[StepPeak, ...]:
        """Return the peaks of each marked part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The memory of one training job at one batch size on one device."""

    batch_size: int
    """Samples per step."""

    device: DeviceProfile
    """The GPU it is meant for."""

    limit_bytes: int
    """Bytes of the device that the job may use in all: total, less other processes' and the safety margin."""

    peak_requested_bytes: int
    """Largest number of requested bytes. Where the job runs out of memory, all four peaks are
    those it would reach on a card with room for it."""

    peak_allocated_bytes: int
    """Largest number of allocated bytes."""

    peak_reserved_bytes: int
    """Largest number of reserved bytes."""

    peak_device_bytes: int
    """Peak reserved plus what lies outside the allocator."""

    fits: bool | None
    """Whether the job runs within the limit; ``None`` where that is not known, see ``verdict_reason``."""

    verdict_reason: str
    """One sentence: why it fits, does not, or is not known."""

    outcome: Outcome
    """What the simulated allocator met within the limit: ``Completed`` or ``OutOfMemory``."""

    num_retries: int
    """Times the allocator had to give its cache back to the device to go on."""

    num_skipped_workspaces: int
    """Optional workspaces that found no room; the job goes on with slower kernels."""

    coverage: Coverage
    """What the trace saw and what is not known."""

    provenance: Provenance
    """Where the numbers come from."""

    explainer: Explainer = field(repr=False, compare=False)
    """Answers the methods below."""

    @property
    def headroom_bytes(self) -> int:
        """Limit less device peak; negative where the job would need more than there is."""
        return self.limit_bytes - self.peak_device_bytes

    def breakdown(self, peak: PeakName = "allocated") -> Breakdown:
        """Return what occupies the device at a peak (a replay: milliseconds).

        Args:
            peak: ``allocated`` for the moment of most live memory, ``reserved`` for the first
                moment at which the device peak is reached.

        """
        return self.explainer.breakdown(self, peak)

    def interval(self) -> Interval:
        """Return where the device peak can lie, with the reasons (a few replays)."""
        return self.explainer.interval(self)

    def steps(self) -> tuple[StepPeak, ...]:
        """Return the peaks of the build and of each step; the first step often differs from the steady ones."""
        return self.explainer.steps(self)
