"""From one trace to the memory at every batch size on one device.

The verdict is the allocator's own: the job is replayed with just the memory it may have,
and fits when every request is served, if need be after the allocator has given its cache
back. Comparing an unlimited peak with the limit instead would refuse jobs that run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnmem_tune.allocators.base import Allocator, AllocatorPolicy, AllocatorStats
from dnnmem_tune.allocators.policy import CachingPolicy
from dnnmem_tune.allocators.replay import Completed, OutOfMemory, Timeline, history, replay
from dnnmem_tune.errors import UsageError
from dnnmem_tune.estimate.devices import DeviceProfile
from dnnmem_tune.estimate.explain import break_down, peaks_between_marks, reason_from, span
from dnnmem_tune.estimate.report import (
    Breakdown,
    Interval,
    MemoryEstimate,
    PeakName,
    Provenance,
    Reason,
    StepPeak,
)
from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.ir.trace import MemoryTrace
from dnnmem_tune.operators import temp_space
from dnnmem_tune.operators.convolution import MODELS, RULE
from dnnmem_tune.operators.scratch import SizeTable
from dnnmem_tune.units import format_bytes

_INT64_SAFE = 1 << 62
_MOST_REPLAYED_BYTES = 1 << 45
"""Memory of a card with room for anything: 32 TiB, half the addresses that an allocator has.

A job that requests half of it or more is not replayed there; the bytes requested say enough.
"""


class Estimator:
    """Estimates of one traced job on one device; built once, asked for many batch sizes.

    Args:
        trace: What the job allocates and frees.
        device: The GPU.
        policy: Constants of the framework's allocator; PyTorch's unless given.
        conv_workspace: Model of the convolution workspace: ``none``, ``limited`` or ``benchmark``.
        safety_bytes: Memory to leave unused on the device.
        safety_fraction: Share of the device to leave unused as well, from 0 to below 1.
        extra_bytes: What the job takes outside the allocator besides the context (NCCL buffers, a renderer).
        unknown_operators: ``report``: a job with operators that have no memory rule is not said to
            fit; ``count``: their outputs are counted and that is taken to be all.

    Raises:
        UsageError: If a margin is negative or leaves nothing of the device.

    """

    def __init__(
        self,
        trace: MemoryTrace,
        device: DeviceProfile,
        *,
        policy: AllocatorPolicy | None = None,
        conv_workspace: str = "none",
        safety_bytes: int = 0,
        safety_fraction: float = 0.0,
        extra_bytes: int = 0,
        unknown_operators: str = "report",
    ) -> None:
        if safety_bytes < 0 or extra_bytes < 0:
            raise UsageError(f"a margin is at least 0 bytes, got safety {safety_bytes} and extra {extra_bytes}")
        if not 0 <= safety_fraction < 1:
            raise UsageError(f"a safety fraction lies from 0 to below 1, got {safety_fraction}")
        if unknown_operators not in ("report", "count"):
            raise UsageError(f'unknown_operators is "report" or "count", got {unknown_operators!r}')
        if conv_workspace not in MODELS:
            raise UsageError(
                f"there is no convolution workspace model {conv_workspace!r}; choose one of {', '.join(MODELS)}"
            )
        self.trace = trace
        self.device = device
        self.policy: AllocatorPolicy = policy if policy is not None else CachingPolicy()
        self.conv_workspace = conv_workspace
        self.context_bytes = device.context_bytes + extra_bytes
        margin = safety_bytes + int(safety_fraction * device.total_bytes)
        self.limit_bytes = device.total_bytes - device.occupied_bytes - margin
        capacity_bytes = self.limit_bytes - self.context_bytes
        self.capacity_bytes = self.policy.reservable_bytes(
            capacity_bytes, device.total_bytes, device.compute_capability
        )
        self.limit_bytes = self.context_bytes + self.capacity_bytes
        if capacity_bytes > 0 and self.capacity_bytes <= 0:
            raise UsageError(
                f"{device.name} has {format_bytes(capacity_bytes)} free, and of those the "
                f"{self.policy.describe()} takes nothing; choose a larger device or a smaller reserve"
            )
        if self.capacity_bytes <= 0:
            raise UsageError(
                f"{device.name} has {format_bytes(device.total_bytes)}; context and other processes take "
                f"{format_bytes(self.context_bytes + device.occupied_bytes)} and a margin of "
                f"{format_bytes(margin)} leaves nothing; lower the safety margin or free the device"
            )
        self._optional = frozenset(i for i, storage in enumerate(trace.storages) if storage.optional)
        self._count_unknown = unknown_operators == "count"
        self._tables: dict[str, SizeTable] = {}
        codes = np.array(trace.events, dtype=np.int64)
        self._signs = np.where(codes >= 0, 1, -1)
        self._indices = np.where(codes >= 0, codes, ~codes)
        self._is_required = np.array([not storage.optional for storage in trace.storages], dtype=bool)
        plain = [storage.size for storage in trace.storages if isinstance(storage.size, Polynomial)]
        self._total = Polynomial(
            sum(abs(size.constant) for size in plain),
            sum(abs(size.linear) for size in plain),
            sum(abs(size.quadratic) for size in plain),
        )

    def at(self, batch_size: int) -> MemoryEstimate:
        """Return the estimate at one batch size.

        Args:
            batch_size: At least 1.

        Raises:
            UsageError: If the batch size is no whole number of at least 1.

        """
        sizes = self.sizes(batch_size)
        limited = self.replay(sizes)
        fits, reason = self._judge(limited, sizes)
        peak = limited.peak if isinstance(limited.outcome, Completed) else self._demand(batch_size, sizes)
        return MemoryEstimate(
            batch_size=batch_size,
            device=self.device,
            limit_bytes=self.limit_bytes,
            peak_requested_bytes=peak.requested_bytes,
            peak_allocated_bytes=peak.allocated_bytes,
            peak_reserved_bytes=peak.reserved_bytes,
            peak_device_bytes=peak.reserved_bytes + self.context_bytes,
            fits=fits,
            verdict_reason=reason,
            outcome=limited.outcome,
            num_retries=limited.num_retries,
            num_skipped_workspaces=len(limited.skipped),
            coverage=self.trace.coverage,
            provenance=self._provenance(),
            explainer=self,
        )

    def lower_bound(self, batch_size: int) -> int:
        """Return the peak of the bytes requested, without kernel scratch and optional workspaces.

        No allocator reserves less than that, so a batch size whose bound exceeds the
        capacity is refused without a replay. Takes a few array operations.

        Args:
            batch_size: At least 1.

        Raises:
            UsageError: If the batch size is no whole number of at least 1.

        """
        _require_batch_size(batch_size)
        if self._overflows(batch_size):
            return _peak_of_whole_numbers(self.trace, batch_size)
        required = self._table(self.conv_workspace).without_scratch(batch_size) * self._is_required
        if not len(self._indices):
            return 0
        return max(0, int(np.cumsum(required[self._indices] * self._signs).max()))

    def sizes(self, batch_size: int, conv_workspace: str | None = None) -> list[int]:
        """Return the bytes of every storage; 0 for one that is not allocated.

        Args:
            batch_size: At least 1.
            conv_workspace: Another model of the convolution workspace than the estimator's own.

        Raises:
            UsageError: If the batch size is no whole number of at least 1.

        """
        _require_batch_size(batch_size)
        if self._overflows(batch_size):
            return _sizes_without_scratch(self.trace, batch_size)
        table = self._table(conv_workspace if conv_workspace is not None else self.conv_workspace)
        if self.lower_bound(batch_size) > _MOST_REPLAYED_BYTES:
            # No card is near; scratch, of which there is more launches the larger the tensors, changes nothing.
            plain: list[int] = table.without_scratch(batch_size).tolist()
            return plain
        return table.at(batch_size)

    def _table(self, conv_workspace: str) -> SizeTable:
        if conv_workspace not in self._tables:
            target = self.device.kernel_target(conv_workspace)
            self._tables[conv_workspace] = SizeTable(self.trace, target)
        return self._tables[conv_workspace]

    def replay(
        self, sizes: Sequence[int], *, unlimited: bool = False, policy: AllocatorPolicy | None = None
    ) -> Timeline:
        """Replay the trace with these sizes.

        Args:
            sizes: Bytes of every storage.
            unlimited: On a card with room for anything instead of the device's capacity.
            policy: Another policy than the estimator's own.

        """
        allocator = self._allocator(unlimited=unlimited, policy=policy)
        return replay(self.trace.events, sizes, allocator, optional=self._optional)

    def breakdown(self, estimate: MemoryEstimate, peak: PeakName = "allocated") -> Breakdown:
        """Return what occupies the device at a peak of ``estimate``."""
        sizes = self.sizes(estimate.batch_size)
        unlimited = not self._completed(estimate)
        timeline = self.replay(sizes, unlimited=unlimited)
        event = timeline.peak_allocated_event if peak == "allocated" else timeline.peak_reserved_event
        if event < 0:
            raise UsageError("a trace that allocates nothing has no peak to break down")
        until = replay(
            self.trace.events[: event + 1], sizes, self._allocator(unlimited=unlimited), optional=self._optional
        )
        taken = list(sizes)
        for index in until.skipped:
            taken[index] = 0
        return break_down(self.trace, taken, event, until.final, self.context_bytes)

    def steps(self, estimate: MemoryEstimate) -> tuple[StepPeak, ...]:
        """Return the peaks of each marked part of the job."""
        sizes = self.sizes(estimate.batch_size)
        allocator = self._allocator(unlimited=not self._completed(estimate))
        return peaks_between_marks(
            self.trace, history(self.trace.events, sizes, allocator, optional=self._optional)
        )

    def interval(self, estimate: MemoryEstimate) -> Interval:
        """Return where the device peak of ``estimate`` can lie."""
        batch_size = estimate.batch_size
        sizes = self.sizes(batch_size)
        unlimited = not self._completed(estimate)
        peak = estimate.peak_reserved_bytes
        reasons = [
            self._context_reason(),
            *(
                reason_from(other.cause, other.text, peak, [self._peak_reserved(sizes, unlimited, other.policy)])
                for other in self.policy.alternatives()
            ),
        ]
        rules = {storage.size.rule for storage in self.trace.storages if isinstance(storage.size, Scratch)}
        if rules & {RULE, temp_space.RULE}:
            # Trying every algorithm is the user's own choice in PyTorch, and the default of MXNet
            # (MXNET_CUDNN_AUTOTUNE_DEFAULT=1); the other two are the library's.
            models = MODELS if temp_space.RULE in rules else ("none", "limited")
            others = set(models) - {self.conv_workspace}
            reasons.append(
                reason_from(
                    "convolution workspace",
                    f"cuDNN chooses its algorithms on the card; the model here is {self.conv_workspace!r}",
                    peak,
                    [self._peak_reserved(self.sizes(batch_size, model), unlimited) for model in sorted(others)],
                )
            )
        if self.trace.coverage.bounded:
            names = ", ".join(sorted(self.trace.coverage.bounded))
            reasons.append(
                reason_from(
                    "sizes that depend on values",
                    f"{names} gives as many elements as the values say; the estimate takes the most there can be",
                    peak,
                    [self._peak_reserved(self.without_bounded(sizes), unlimited)],
                )
            )
        return span(estimate.peak_device_bytes, reasons)

    def without_bounded(self, sizes: Sequence[int]) -> list[int]:
        """Return ``sizes`` with nothing for outputs that were bounded from above.

        What other operators make of those outputs keeps its bound.
        """
        bounded = self.trace.coverage.bounded
        operations = self.trace.operations
        return [
            0 if operations[storage.operation].name in bounded else nbytes
            for storage, nbytes in zip(self.trace.storages, sizes, strict=True)
        ]

    def _overflows(self, batch_size: int) -> bool:
        """Whether a sum of sizes, or the square of the batch size, may not fit 64 bits."""
        return batch_size * batch_size >= _INT64_SAFE or self._total.at(batch_size) >= _INT64_SAFE

    def _demand(self, batch_size: int, sizes: Sequence[int]) -> AllocatorStats:
        """Return the peaks on a card with room for the job."""
        requested_bytes = self.lower_bound(batch_size)
        if requested_bytes > _MOST_REPLAYED_BYTES // 2:
            return AllocatorStats(requested_bytes, requested_bytes, requested_bytes)
        return self.replay(sizes, unlimited=True).peak

    def _judge(self, limited: Timeline, sizes: Sequence[int]) -> tuple[bool | None, str]:
        coverage = self.trace.coverage
        match limited.outcome:
            case OutOfMemory(storage=storage):
                operation = self.trace.operations[self.trace.storages[storage].operation]
                where = f" in {operation.module!r}" if operation.module else ""
                reason = f"out of memory at {operation.name}{where}, step {operation.step}"
                if coverage.bounded and isinstance(self.replay(self.without_bounded(sizes)).outcome, Completed):
                    names = ", ".join(sorted(coverage.bounded))
                    return None, f"{reason}, but only if {names} give as many elements as they can at most"
                return False, reason
            case Completed():
                if coverage.unknown_operators and not self._count_unknown:
                    names = ", ".join(sorted(coverage.unknown_operators))
                    return None, f"what is known fits, but there is no memory rule for {names}"
                return True, "every request is served within the limit"

    def _allocator(self, *, unlimited: bool, policy: AllocatorPolicy | None = None) -> Allocator:
        policy = policy if policy is not None else self.policy
        if unlimited:
            return policy.without_limits().make_allocator(_MOST_REPLAYED_BYTES, _MOST_REPLAYED_BYTES)
        return policy.make_allocator(self.capacity_bytes, self.device.total_bytes)

    def _completed(self, estimate: MemoryEstimate) -> bool:
        return isinstance(estimate.outcome, Completed)

    def _peak_reserved(self, sizes: Sequence[int], unlimited: bool, policy: AllocatorPolicy | None = None) -> int:
        timeline = self.replay(sizes, unlimited=unlimited, policy=policy)
        if not isinstance(timeline.outcome, Completed):
            timeline = self.replay(sizes, unlimited=True, policy=policy)
        return timeline.peak.reserved_bytes

    def _context_reason(self) -> Reason:
        uncertainty = self.device.context_uncertainty_bytes
        return Reason(
            cause="context",
            below_bytes=min(uncertainty, self.device.context_bytes),
            above_bytes=uncertainty,
            text="the CUDA context and the kernels loaded into it depend on driver, CUDA and cuDNN releases",
        )

    def _provenance(self) -> Provenance:
        return Provenance(
            framework=self.trace.framework,
            recorder=self.trace.recorder,
            traced_batch_sizes=self.trace.batch_sizes,
            allocator=self.policy.describe(),
            conv_workspace=self.conv_workspace,
            device=self.device.source,
        )


def _require_batch_size(batch_size: object) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"a batch size is a whole number of at least 1, got {batch_size!r}")


def _sizes_without_scratch(trace: MemoryTrace, batch_size: int) -> list[int]:
    """Return the sizes in whole numbers of any length, for batch sizes that overflow 64 bits."""
    sizes = (storage.size for storage in trace.storages)
    return [size.at(batch_size) if isinstance(size, Polynomial) else 0 for size in sizes]


def _peak_of_whole_numbers(trace: MemoryTrace, batch_size: int) -> int:
    sizes = _sizes_without_scratch(trace, batch_size)
    live = peak = 0
    for code in trace.events:
        index = code if code >= 0 else ~code
        if trace.storages[index].optional:
            continue
        live += sizes[index] if code >= 0 else -sizes[index]
        peak = max(peak, live)
    return peak
