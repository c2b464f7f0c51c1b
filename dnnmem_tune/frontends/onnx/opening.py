"""Open a model file as a workload, for inference or for training as one of three frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnmem_tune import __version__
from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.onnx.recorder import OnnxRecorder
from dnnmem_tune.frontends.trace_store import DiskStore
from dnnmem_tune.frontends.traced import TracedWorkload
from dnnmem_tune.operators.differentiation import TARGETS

if TYPE_CHECKING:
    from dnnmem_tune.frontends import Tracing


def onnx_target(framework: str) -> str | None:
    """Return whose training step is wanted of an ONNX model: ``pytorch`` of ``onnx:pytorch``; None for inference.

    Raises:
        UsageError: If there is none of that name.

    """
    name, colon, target = framework.partition(":")
    if not colon:
        return None
    if name != "onnx" or target not in TARGETS:
        raise UsageError(
            f"an ONNX model is trained as {', '.join(TARGETS[:-1])} or {TARGETS[-1]}, got {target or framework!r}"
        )
    return target


def open_model(workload: Any, params: dict[str, Any], tracing: Tracing) -> TracedWorkload:
    """Return the traces of a model file.

    Args:
        workload: Path of the file.
        params: Settings and dimensions; see ``settings``.
        tracing: For which device, and within which limits.

    Raises:
        UsageError: If the workload is no path, or the file cannot be read.

    """
    if not isinstance(workload, str):
        raise UsageError(f"an ONNX workload is the path of a file, got {workload!r}")
    recorder = OnnxRecorder(
        Path(workload).expanduser(), train_as=onnx_target(tracing.framework), memory_limit=tracing.memory_limit
    )
    store = DiskStore(tracing.cache_dir) if tracing.cache_dir is not None else None
    return TracedWorkload(
        recorder,
        RecordRequest(
            workload=workload, batch_size=1, params=params, compute_capability=tracing.compute_capability
        ),
        store=store,
        fingerprint=f"dnnmem_tune {__version__}, {recorder.fingerprint()}",
    )
