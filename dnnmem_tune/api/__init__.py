"""The library: the memory of a training job, the largest batch that fits, and the smallest card.

Each function opens an `EstimationSession`, asks it one thing and closes it. Code that asks
about many batch sizes, cards or hyperparameters keeps a session instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnmem_tune.api.arguments import batch_size_of, plain_params
from dnnmem_tune.api.search import Bounds
from dnnmem_tune.api.session import EstimationSession
from dnnmem_tune.decisions.batch_size import BatchSizeResult
from dnnmem_tune.decisions.comparison import ComparedDevice, Comparison

if TYPE_CHECKING:
    from dnnmem_tune.estimate.devices import DeviceProfile
    from dnnmem_tune.estimate.report import MemoryEstimate
    from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

__all__ = [
    "Bounds",
    "ComparedDevice",
    "Comparison",
    "EstimationSession",
    "compare",
    "estimate",
    "max_batch_size",
]


def estimate(
    workload: str | Callable[..., Any] | TrainingStep,
    *,
    batch_size: int,
    gpu: str | DeviceProfile,
    params: Mapping[str, Any] | None = None,
    conv_workspace: str = "none",
    alloc_conf: str | None = None,
    safety: float | str | None = None,
    framework: str = "torch",
    recorder: str = "auto",
    cache_dir: str | Path | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
) -> MemoryEstimate:
    """Return the GPU memory of a training job, without a GPU.

    Args:
        workload: ``"train.py:build"``, ``"module:function"``, the name of a built-in workload,
            ``"hf:CONFIG"``, ``"timm:NAME"``, ``"torchvision:NAME"``, the function itself, or a `TrainingStep`.
        batch_size: Samples per step.
        gpu: A card of the catalogue (``"V100-16GB"``), a size (``"24GiB"``), ``"local"``, or a TOML file.
        params: Hyperparameters passed to the workload.
        conv_workspace: Model of the convolution workspace: ``none``, ``limited`` or ``benchmark``.
        alloc_conf: What ``PYTORCH_ALLOC_CONF`` will be in the job; the environment is not read.
        safety: Device memory to leave unused: a share of the card (``0.05``), or a size (``"512MiB"``).
        framework: Which front-end reads the workload.
        recorder: How it is traced: ``auto``, ``fake`` or ``emulated``.
        cache_dir: Folder in which traces are kept between runs.
        time_limit: Seconds that one trace may take.
        memory_limit: Host memory in bytes that one trace may take.

    Returns:
        Four peaks in bytes, whether it ``fits``, and what else is known.

    Raises:
        UsageError: If an argument cannot be meant.
        WorkloadError: If the workload cannot be loaded, or raises.
        TraceError: If it cannot be traced.

    Example:
        >>> e = estimate("resnet50", batch_size=32, gpu="A100-40GB")  # doctest: +SKIP
        >>> e.fits, e.peak_reserved_bytes  # doctest: +SKIP
        (True, 3521118208)

    """
    batch_size_of(batch_size)
    plain_params(params)
    with EstimationSession(
        workload,
        framework=framework,
        recorder=recorder,
        conv_workspace=conv_workspace,
        alloc_conf=alloc_conf,
        safety=safety,
        cache_dir=cache_dir,
        time_limit=time_limit,
        memory_limit=memory_limit,
    ) as session:
        return session.estimate(batch_size, gpu, params)


def max_batch_size(
    workload: str | Callable[..., Any] | TrainingStep,
    *,
    gpu: str | DeviceProfile,
    params: Mapping[str, Any] | None = None,
    minimum: int = 1,
    maximum: int | None = None,
    multiple_of: int = 1,
    power_of_two: bool = False,
    target_batch: int | None = None,
    searched: str = "batch_size",
    batch_size: int | None = None,
    conv_workspace: str = "none",
    alloc_conf: str | None = None,
    safety: float | str | None = None,
    framework: str = "torch",
    recorder: str = "auto",
    cache_dir: str | Path | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
) -> BatchSizeResult:
    """Return the largest batch of a training job that fits a card, without a GPU.

    Args:
        workload: As for `estimate`; so are the arguments that are not named here.
        gpu: The card.
        params: Hyperparameters passed to the workload.
        minimum: Smallest batch allowed.
        maximum: Largest batch allowed; None for no bound.
        multiple_of: Only multiples of it are answers.
        power_of_two: Only powers of two are answers.
        target_batch: A batch that is wanted; the result's ``plans`` then say which micro-batch and how many
            accumulation steps make it.
        searched: Another whole-number hyperparameter to search instead, such as ``"seq_len"``; the bounds are
            then its bounds, and ``largest_batch`` its largest value.
        batch_size: The fixed batch size where another hyperparameter is searched.
        conv_workspace: Model of the convolution workspace.
        alloc_conf: What ``PYTORCH_ALLOC_CONF`` will be in the job.
        safety: Device memory to leave unused.
        framework: Which front-end reads the workload.
        recorder: How it is traced.
        cache_dir: Folder in which traces are kept between runs.
        time_limit: Seconds that one trace may take.
        memory_limit: Host memory in bytes that one trace may take.

    Returns:
        ``largest_batch`` (None where none fits) and ``first_too_large``, with every look the search took.

    Raises:
        UsageError: If an argument cannot be meant.
        WorkloadError: If the workload cannot be loaded, or runs at no batch size.
        TraceError: If it cannot be traced.

    Example:
        >>> r = max_batch_size("resnet50", gpu="V100-16GB")  # doctest: +SKIP
        >>> r.largest_batch, r.first_too_large  # doctest: +SKIP
        (185, 186)

    """
    bounds = Bounds(minimum=minimum, maximum=maximum, multiple_of=multiple_of, power_of_two=power_of_two)
    plain_params(params)
    with EstimationSession(
        workload,
        framework=framework,
        recorder=recorder,
        conv_workspace=conv_workspace,
        alloc_conf=alloc_conf,
        safety=safety,
        cache_dir=cache_dir,
        time_limit=time_limit,
        memory_limit=memory_limit,
    ) as session:
        if searched == "batch_size":
            return session.max_batch_size(gpu, params, bounds=bounds, target_batch=target_batch)
        return session.largest_value(searched, batch_size_of(batch_size), gpu, params, bounds=bounds)


def compare(
    workload: str | Callable[..., Any] | TrainingStep,
    *,
    gpus: Iterable[str | DeviceProfile] | None = None,
    batch_size: int | None = None,
    params: Mapping[str, Any] | None = None,
    conv_workspace: str = "none",
    alloc_conf: str | None = None,
    safety: float | str | None = None,
    framework: str = "torch",
    recorder: str = "auto",
    cache_dir: str | Path | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
) -> Comparison:
    """Return what several cards can do with a training job; ``smallest`` is the smallest that fits.

    Args:
        workload: As for `estimate`; so are the arguments that are not named here.
        gpus: The cards; None for the whole catalogue.
        batch_size: Samples per step; None for the largest that fits each card.
        params: Hyperparameters passed to the workload.
        conv_workspace: Model of the convolution workspace.
        alloc_conf: What ``PYTORCH_ALLOC_CONF`` will be in the job.
        safety: Device memory to leave unused.
        framework: Which front-end reads the workload.
        recorder: How it is traced.
        cache_dir: Folder in which traces are kept between runs.
        time_limit: Seconds that one trace may take.
        memory_limit: Host memory in bytes that one trace may take.

    Raises:
        UsageError: If an argument cannot be meant.
        WorkloadError: If the workload cannot be loaded, or raises.
        TraceError: If it cannot be traced.

    """
    if batch_size is not None:
        batch_size_of(batch_size)
    plain_params(params)
    with EstimationSession(
        workload,
        framework=framework,
        recorder=recorder,
        conv_workspace=conv_workspace,
        alloc_conf=alloc_conf,
        safety=safety,
        cache_dir=cache_dir,
        time_limit=time_limit,
        memory_limit=memory_limit,
    ) as session:
        return session.compare(gpus, params, batch_size=batch_size)
