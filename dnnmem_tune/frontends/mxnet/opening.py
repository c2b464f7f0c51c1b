"""Opens an MXNet workload: checks what it is, and finds the interpreter that binds it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnmem_tune import __version__
from dnnmem_tune.errors import UsageError, WorkloadError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.mxnet.client import MxnetRecorder
from dnnmem_tune.frontends.mxnet.interpreter import find_interpreter
from dnnmem_tune.frontends.mxnet.workloads.references import Function, SymbolFile, parse_reference
from dnnmem_tune.frontends.trace_store import DiskStore
from dnnmem_tune.frontends.traced import TracedWorkload

if TYPE_CHECKING:
    from dnnmem_tune.frontends import Tracing


def open_mxnet(workload: Any, params: dict[str, Any], tracing: Tracing) -> TracedWorkload:
    """Return the traces of an MXNet workload.

    Raises:
        UsageError: If the workload is a function of this process, or another recorder is asked for.
        WorkloadError: If the reference has none of the known forms, or its file cannot be read.
        MissingPackageError: If no interpreter has MXNet.

    """
    if not isinstance(workload, str):
        raise UsageError(
            f"an MXNet workload runs under an interpreter of its own and is given by reference, such as "
            f"'net.py:build', got {type(workload).__name__}"
        )
    if tracing.recorder not in ("auto",):
        raise UsageError(
            f"MXNet workloads are bound by MXNet itself; recorder is 'auto', got {tracing.recorder!r}"
        )
    recorder = MxnetRecorder(
        workload,
        compute_capability=tracing.compute_capability,
        total_bytes=tracing.total_bytes,
        num_sms=tracing.num_sms,
        time_limit=tracing.time_limit,
        memory_limit=tracing.memory_limit,
        python=tracing.options.get("mxnet_python") or find_interpreter(os.environ),
    )
    request = RecordRequest(
        workload=workload,
        batch_size=1,
        params=params,
        compute_capability=tracing.compute_capability,
        total_bytes=tracing.total_bytes,
        num_sms=tracing.num_sms,
        num_steps=tracing.num_steps,
    )
    store = DiskStore(tracing.cache_dir) if tracing.cache_dir is not None else None
    fingerprint = f"dnnmem_tune {__version__}, {recorder.fingerprint()}, {_content_of(workload)}"
    return TracedWorkload(recorder, request, store=store, fingerprint=fingerprint)


def _content_of(workload: str) -> str:
    """Return a digest of the workload's own file, so that an edited one is bound again."""
    match parse_reference(workload):
        case SymbolFile(path):
            file: Path | None = path
        case Function() as function:
            file = function.path
        case _:
            file = None
    if file is None:
        return workload
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise WorkloadError(f"the workload's file {str(file)!r} cannot be read: {error.strerror}") from error
