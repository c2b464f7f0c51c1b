"""Numbers and facts in words, the same in every report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnmem_tune.estimate.devices import DeviceProfile
from dnnmem_tune.estimate.report import MemoryEstimate
from dnnmem_tune.units import format_bytes

CONV_WORKSPACE = {
    "none": "algorithms without a workspace: the lower end of the peak",
    "limited": "what cuDNN's heuristics usually take",
    "benchmark": "the largest that torch.backends.cudnn.benchmark tries: the upper end of the peak",
}

_CONVOLUTION_WORKSPACE = "convolution workspace"


def job_line(workload: str, params: Mapping[str, Any], device: DeviceProfile) -> str:
    """Return what is estimated, and on which card."""
    given = ", ".join(f"{name}={value!r}" for name, value in params.items())
    capability = "{}.{}".format(*device.compute_capability)
    return (
        f"{workload}{f' with {given}' if given else ''} on {device.name} "
        f"({format_bytes(device.total_bytes)}, compute capability {capability})"
    )


def notes_on(estimate: MemoryEstimate) -> list[str]:
    """Return what a reader of the peaks should know, one sentence each; the most important first."""
    coverage, notes = estimate.coverage, []
    # A workspace that finds no room is done without: it can slow the job down, and not end it.
    unknown_bytes = sum(
        reason.above_bytes for reason in estimate.interval().reasons if reason.cause != _CONVOLUTION_WORKSPACE
    )
    if estimate.fits and unknown_bytes > estimate.headroom_bytes:
        percent = -(-100 * unknown_bytes // estimate.device.total_bytes)
        notes.append(
            f"It fits by {format_bytes(estimate.headroom_bytes)}, which is less than what is not known: the "
            f"device peak may be {format_bytes(unknown_bytes)} higher. "
            f"Leave a margin (--safety {percent}%) to be safe."
        )
    if coverage.unknown_operators:
        names = ", ".join(sorted(coverage.unknown_operators))
        notes.append(f"There is no memory rule for {names}; only their outputs are counted.")
    if coverage.host_reads:
        places = ", ".join(sorted(coverage.host_reads)[:3])
        notes.append(
            f"The workload reads values from the GPU ({places}); they are placeholders here, so sizes or branches "
            "that depend on them may differ."
        )
    if coverage.bounded:
        names = ", ".join(sorted(coverage.bounded))
        notes.append(f"The outputs of {names} depend on values; they are counted as large as they can be.")
    if estimate.num_retries and estimate.fits:
        notes.append(
            f"PyTorch's allocator has to give its cache back to the card {_times(estimate.num_retries)} to fit: "
            "the job runs, but slower."
        )
    if estimate.num_skipped_workspaces:
        notes.append(
            f"{estimate.num_skipped_workspaces} convolution workspaces find no room; "
            "those convolutions run slower."
        )
    if any(reason.cause == _CONVOLUTION_WORKSPACE for reason in estimate.interval().reasons):
        model = estimate.provenance.conv_workspace
        notes.append(f"Convolution workspace model {model!r}: {CONV_WORKSPACE.get(model, model)}.")
    return [*notes, *coverage.notes]


def provenance_line(estimate: MemoryEstimate) -> str:
    """Return how the numbers came about."""
    provenance = estimate.provenance
    traced = ", ".join(str(size) for size in provenance.traced_batch_sizes) or str(estimate.batch_size)
    return (
        f"{provenance.framework}, recorded on {provenance.recorder} at batch {traced}; "
        f"{provenance.allocator}; {provenance.device}"
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
