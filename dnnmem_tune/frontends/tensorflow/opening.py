"""A TensorFlow workload, opened: its recorder, its request and its place in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dnnmem_tune import __version__
from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.tensorflow.client import TensorFlowRecorder
from dnnmem_tune.frontends.tensorflow.workloads.references import fingerprint
from dnnmem_tune.frontends.torch.workloads.by_value import locate
from dnnmem_tune.frontends.trace_store import DiskStore
from dnnmem_tune.frontends.traced import TracedWorkload

if TYPE_CHECKING:
    from dnnmem_tune.frontends import Tracing


def open_tensorflow(workload: Any, params: dict[str, Any], tracing: Tracing) -> TracedWorkload:
    """Return the traces of a workload; see ``dnnmem_tune.frontends.open_workload``.

    Raises:
        UsageError: If the recorder is one of PyTorch's.

    """
    if tracing.recorder == "emulated":
        raise UsageError(
            "recorder 'emulated' is for PyTorch; for TensorFlow choose 'auto', "
            "or 'fake' to skip its graph optimiser"
        )
    reference = workload if isinstance(workload, str) else locate(workload)
    recorder = TensorFlowRecorder(
        reference,
        fast=tracing.recorder == "fake",
        compute_capability=tracing.compute_capability,
        total_bytes=tracing.total_bytes,
        num_sms=tracing.num_sms,
        time_limit=tracing.time_limit,
        memory_limit=tracing.memory_limit,
    )
    request = RecordRequest(
        workload=reference,
        batch_size=1,
        params=params,
        compute_capability=tracing.compute_capability,
        total_bytes=tracing.total_bytes,
        num_sms=tracing.num_sms,
        num_steps=tracing.num_steps,
    )
    return TracedWorkload(
        recorder,
        request,
        store=DiskStore(tracing.cache_dir) if tracing.cache_dir is not None else None,
        fingerprint=f"dnnmem_tune {__version__}, {recorder.fingerprint()}, {fingerprint(reference)}",
    )
