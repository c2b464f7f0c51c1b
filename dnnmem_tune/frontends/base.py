"""What every front-end offers: a recorder that turns one request into one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dnnmem_tune.ir.trace import MemoryTrace

DEFAULT_STEPS = 3
"""Steps recorded: state appears in the first, and what the second frees late meets the third."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRequest:
    """One run of a workload that is to be recorded."""

    workload: str
    """Reference that the worker resolves: ``train.py:build``, a built-in name, ``hf:config.json``."""

    batch_size: int

    params: dict[str, Any] = field(default_factory=dict)
    """Hyperparameters passed to ``build``; JSON values."""

    compute_capability: tuple[int, int] = (8, 0)
    """Decides which kernels are chosen, and the size of the cuBLAS workspaces."""

    total_bytes: int = 80 << 30
    """Memory that ``torch.cuda.mem_get_info`` and the device properties report to the workload."""

    num_sms: int = 108
    """Multiprocessors that the device properties report to the workload."""

    num_steps: int = DEFAULT_STEPS


class Recorder(Protocol):
    """Records training steps; an implementation owns its worker process."""

    def record(self, requests: Sequence[RecordRequest]) -> list[MemoryTrace]:
        """Return one trace with constant sizes for each request, in order.

        Raises:
            WorkloadError: If the workload cannot be loaded or raises.
            TraceError: If a trace hangs, dies or outgrows its limits.

        """

    def fingerprint(self) -> str:
        """Return what a cached trace depends on besides the request: source, versions, recorder."""

    def close(self) -> None:
        """End the worker process; later calls of ``record`` start it again."""
