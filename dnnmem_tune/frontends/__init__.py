"""Where traces come from: the only place that imports a framework, and only in a worker process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnmem_tune import __version__
from dnnmem_tune.errors import TraceError, UnsupportedError, UsageError
from dnnmem_tune.frontends.base import DEFAULT_STEPS, RecordRequest
from dnnmem_tune.frontends.trace_store import DiskStore
from dnnmem_tune.frontends.traced import TracedWorkload

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.client import TorchRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """How and for which device a workload is to be traced."""

    framework: str = "torch"

    recorder: str = "auto"
    """``fake`` or ``emulated``; ``auto`` takes the most exact one that works here.

    TensorFlow has ``auto``, with its graph optimiser, and ``fake``, without.
    """

    compute_capability: tuple[int, int] = (8, 0)

    total_bytes: int = 80 << 30
    """Memory that the device tells the workload it has."""

    num_sms: int = 108
    """Multiprocessors that the device tells the workload it has."""

    num_steps: int = DEFAULT_STEPS

    time_limit: float = 180.0
    """Seconds that one trace may take."""

    memory_limit: int = 8 << 30
    """Bytes of host memory that one trace may use."""

    cache_dir: Path | None = None
    """Where traces are kept between runs; none are kept where it is not given."""

    options: dict[str, Any] = field(default_factory=dict)
    """What only one front-end understands."""


def is_card_specific(tracing: Tracing) -> bool:
    """Whether a trace holds for one kind of card only: PyTorch itself takes scratch by its multiprocessors."""
    if tracing.framework != "torch" or tracing.recorder == "fake":
        return False
    from dnnmem_tune.frontends.torch.emulated.opening import Unavailable, find_emulation

    return not isinstance(find_emulation(tracing.options.get("torch_python")), Unavailable)


def open_workload(workload: Any, *, params: dict[str, Any], tracing: Tracing) -> TracedWorkload:
    """Return the traces of a workload; nothing runs until a trace is asked for.

    Args:
        workload: A reference (``train.py:build``, a built-in name, ...), a function, or a ``TrainingStep``.
        params: Hyperparameters of the workload; JSON values.
        tracing: For which device, and within which limits.

    Raises:
        UsageError: If the framework is not known or the cache folder cannot be written.
        WorkloadError: If the workload cannot be found.

    """
    openers: dict[str, Callable[[Any, dict[str, Any], Tracing], TracedWorkload]] = {
        "torch": _open_torch,
        "tensorflow": _open_tensorflow,
        "mxnet": _open_mxnet,
        "onnx": _open_onnx,
    }
    opener = openers.get(tracing.framework.partition(":")[0])
    if opener is None:
        raise UsageError(f"framework {tracing.framework!r} is not known; choose one of {', '.join(openers)}")
    return opener(workload, params, tracing)


def _open_torch(workload: Any, params: dict[str, Any], tracing: Tracing) -> TracedWorkload:
    from dnnmem_tune.frontends.torch.workloads.by_value import reference_of
    from dnnmem_tune.frontends.torch.workloads.fingerprint import workload_fingerprint

    reference = workload if isinstance(workload, str) else reference_of(workload)
    fingerprint = workload_fingerprint(reference)
    recorder = _torch_recorder(reference, tracing)
    request = RecordRequest(
        workload=reference,
        batch_size=1,
        params=params,
        compute_capability=tracing.compute_capability,
        total_bytes=tracing.total_bytes,
        num_sms=tracing.num_sms,
        num_steps=tracing.num_steps,
    )
    store = DiskStore(tracing.cache_dir) if tracing.cache_dir is not None else None
    return TracedWorkload(
        recorder,
        request,
        store=store,
        fingerprint=f"dnnmem_tune {__version__}, {recorder.fingerprint()}, {fingerprint}",
    )


def _torch_recorder(reference: str, tracing: Tracing) -> TorchRecorder:
    """PyTorch itself where its CUDA build is installed, and fake tensors everywhere else."""
    from dnnmem_tune.frontends.torch.client import TorchRecorder

    if tracing.recorder != "fake":
        from dnnmem_tune.emulator.cache import ensure_build
        from dnnmem_tune.frontends.torch.emulated.opening import Unavailable, find_emulation, open_recorder

        match find_emulation(tracing.options.get("torch_python")):
            case Unavailable(reason):
                if tracing.recorder == "emulated":
                    raise UnsupportedError(reason)
            case installation:
                try:
                    ensure_build(installation)
                except TraceError:
                    if tracing.recorder == "emulated":
                        raise
                else:
                    return open_recorder(reference, tracing, installation)
    return TorchRecorder(
        reference,
        compute_capability=tracing.compute_capability,
        total_bytes=tracing.total_bytes,
        num_sms=tracing.num_sms,
        time_limit=tracing.time_limit,
        memory_limit=tracing.memory_limit,
    )


def _open_tensorflow(workload: Any, params: dict[str, Any], tracing: Tracing) -> TracedWorkload:
    from dnnmem_tune.frontends.tensorflow.opening import open_tensorflow

    return open_tensorflow(workload, params, tracing)


def _open_mxnet(workload: Any, params: dict[str, Any], tracing: Tracing) -> TracedWorkload:
    from dnnmem_tune.frontends.mxnet.opening import open_mxnet

    return open_mxnet(workload, params, tracing)


def framework_of(workload: Any, framework: str) -> str:
    """Return the front-end for a workload: a path that ends in ``.onnx`` says it itself.

    Example:
        >>> framework_of("model.onnx", "torch"), framework_of("resnet50", "torch")
        ('onnx', 'torch')

    """
    is_file = isinstance(workload, str) and workload.lower().endswith(".onnx")
    return "onnx" if is_file and framework == "torch" else framework


def _open_onnx(workload: Any, params: dict[str, Any], tracing: Tracing) -> TracedWorkload:
    from dnnmem_tune.frontends.onnx.opening import open_model

    return open_model(workload, params, tracing)
