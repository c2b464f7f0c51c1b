"""One workload, kept traced, so that further batch sizes and cards cost milliseconds.

A trace depends on the hyperparameters and on the card's compute capability, and on nothing
else that a search varies: a session keeps one traced workload for each such pair, and one
estimator for each card.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dnnmem_tune.api.advice import advise
from dnnmem_tune.api.arguments import batch_size_of, plain_params, safety_margin, whole_number
from dnnmem_tune.api.comparison import compare_devices
from dnnmem_tune.api.policies import policy_of
from dnnmem_tune.api.search import Bounds, plans_for, search_batch_size, search_value
from dnnmem_tune.decisions.batch_size import MAX_BATCH_SIZE, BatchSizeResult
from dnnmem_tune.decisions.comparison import Comparison
from dnnmem_tune.decisions.remedies import Remedy
from dnnmem_tune.decisions.verdict import Verdict, verdict_of
from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends import Tracing, framework_of, is_card_specific, open_workload
from dnnmem_tune.frontends.traced import TracedWorkload

if TYPE_CHECKING:
    from dnnmem_tune.estimate.devices import DeviceProfile
    from dnnmem_tune.estimate.estimator import Estimator
    from dnnmem_tune.estimate.report import MemoryEstimate
    from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep
    from dnnmem_tune.ir.trace import MemoryTrace

RECORDERS = ("auto", "fake", "emulated")

_TRACED_KEPT = 256
"""Traced workloads kept; a search over a hyperparameter opens one for each value."""

_PROCESSES_KEPT = 2
"""Processes kept that trace: each holds a framework, several hundred megabytes."""

_ESTIMATORS_KEPT = 64
"""Estimators kept: a workload that has to be traced at each batch size makes one for each."""


class EstimationSession:
    """Estimates of one workload at any hyperparameters, batch size and card; for one thread at a time.

    Args:
        workload: ``"train.py:build"``, ``"module:function"``, the name of a built-in workload,
            ``"hf:CONFIG"``, ``"timm:NAME"``, ``"torchvision:NAME"``, the function itself, or a `TrainingStep`.
        framework: Which front-end reads it: ``torch``, ``tensorflow``, ``mxnet`` or ``onnx``, which a path that
            ends in ``.onnx`` selects by itself. ``onnx`` is inference by ONNX Runtime; ``onnx:pytorch``,
            ``onnx:tensorflow`` and ``onnx:ort`` are training with that framework's allocator.
        recorder: How it is traced: ``auto``, ``fake`` or ``emulated``.
        conv_workspace: Model of the convolution workspace: ``none``, ``limited`` or ``benchmark``.
        alloc_conf: What ``PYTORCH_ALLOC_CONF`` will be in the job; None for PyTorch's defaults. The
            environment of this process is not read.
        safety: Device memory to leave unused: a share of the card (``0.05``), or bytes (``"512MiB"``).
        cache_dir: Folder in which traces are kept between runs; None keeps them in memory only.
        time_limit: Seconds that one trace may take; None for the front-end's default.
        memory_limit: Host memory in bytes that one trace may take; None for the front-end's default.
        on_progress: Called with a sentence before anything that can take over a second.

    Raises:
        UsageError: If an option cannot be meant.

    Example:
        >>> with EstimationSession("resnet50") as session:  # doctest: +SKIP
        ...     for batch_size in (16, 32, 64):
        ...         print(batch_size, session.estimate(batch_size, gpu="V100-16GB").peak_device_bytes)

    """

    def __init__(
        self,
        workload: str | Callable[..., Any] | TrainingStep,
        *,
        framework: str = "torch",
        recorder: str = "auto",
        conv_workspace: str = "none",
        alloc_conf: str | None = None,
        safety: float | str | None = None,
        cache_dir: str | Path | None = None,
        time_limit: float | None = None,
        memory_limit: int | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        from dnnmem_tune.operators.convolution import MODELS

        if not callable(workload) and (not isinstance(workload, str) or not workload.strip()):
            raise UsageError(
                f"the workload must be a reference such as 'train.py:build', a built-in name or a function, "
                f"got {workload!r}"
            )
        _one_of(recorder, RECORDERS, "recorder")
        _one_of(conv_workspace, MODELS, "conv_workspace")
        self.workload = workload
        self.conv_workspace = conv_workspace
        self.margin = safety_margin(safety)
        framework = framework_of(workload, framework)
        self.policy = policy_of(framework, alloc_conf)
        self._progress = on_progress or (lambda _text: None)
        limits = {
            "time_limit": _positive(time_limit, "time_limit"),
            "memory_limit": _positive(memory_limit, "memory_limit"),
        }
        self._tracing = Tracing(
            framework=framework,
            recorder=recorder,
            cache_dir=Path(cache_dir).expanduser() if cache_dir is not None else None,
            **{name: limit for name, limit in limits.items() if limit is not None},
        )
        self._traced: OrderedDict[str, TracedWorkload] = OrderedDict()
        self._workers: OrderedDict[tuple[int, ...], TracedWorkload] = OrderedDict()
        self._is_card_specific: bool | None = None
        self._first_batch: dict[int, int] = {}
        self._estimators: OrderedDict[tuple[int, DeviceProfile], Estimator] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that trace; a later estimate starts them again."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        self._traced.clear()
        self._first_batch.clear()
        self._estimators.clear()

    @property
    def name(self) -> str:
        """What to call the workload in a report."""
        if isinstance(self.workload, str):
            return self.workload
        return getattr(self.workload, "__qualname__", type(self.workload).__name__)

    def device(self, gpu: str | DeviceProfile) -> DeviceProfile:
        """Return the card that ``gpu`` names; a `DeviceProfile` stands for itself.

        Raises:
            UnknownDeviceError: If there is no such card.

        """
        from dnnmem_tune.estimate.devices import DeviceProfile

        if isinstance(gpu, DeviceProfile):
            return gpu
        if not isinstance(gpu, str) or not gpu.strip():
            raise UsageError(f"no GPU is given; pass gpu='V100-16GB' (dnnmem gpus lists them), got {gpu!r}")
        from dnnmem_tune.config import find_device

        return find_device(gpu)

    def estimate(
        self, batch_size: int, gpu: str | DeviceProfile, params: Mapping[str, Any] | None = None
    ) -> MemoryEstimate:
        """Return the memory of the workload at one batch size on one card.

        Raises:
            UsageError: If the batch size, the card or a hyperparameter cannot be meant.
            WorkloadError: If the workload cannot be loaded, or raises.
            TraceError: If it cannot be traced.

        """
        size = batch_size_of(batch_size)
        return self.estimator(size, gpu, params).at(size)

    def verdict(
        self, batch_size: int, gpu: str | DeviceProfile, params: Mapping[str, Any] | None = None
    ) -> Verdict:
        """Return whether the workload fits; raises as ``estimate`` does."""
        return verdict_of(self.estimate(batch_size, gpu, params))

    def snapshot(
        self, batch_size: int, gpu: str | DeviceProfile, params: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the run in PyTorch's memory-snapshot format; pickled, pytorch.org/memory_viz shows it.

        Raises as ``estimate`` does, and `UsageError` for a framework other than PyTorch.
        """
        from dnnmem_tune.allocators.policy import CachingPolicy
        from dnnmem_tune.allocators.snapshot import memory_snapshot

        size = batch_size_of(batch_size)
        policy = self.policy
        if not isinstance(policy, CachingPolicy):
            raise UsageError(
                f"a memory snapshot has the format of PyTorch's allocator; it means nothing for the "
                f"{policy.describe()}"
            )
        estimator = self.estimator(size, gpu, params)
        return memory_snapshot(
            estimator.trace,
            estimator.sizes(size),
            policy,
            estimator.capacity_bytes,
            estimator.device.total_bytes,
        )

    def max_batch_size(
        self,
        gpu: str | DeviceProfile,
        params: Mapping[str, Any] | None = None,
        *,
        bounds: Bounds | None = None,
        target_batch: int | None = None,
    ) -> BatchSizeResult:
        """Return the largest batch that fits, and the plans for ``target_batch`` if one is wanted.

        Raises as ``estimate`` does, but a batch size at which the workload does not run is no error
        as long as it runs at another.
        """
        device, plain, limits = self.device(gpu), plain_params(params), bounds or Bounds()
        if target_batch is not None:
            whole_number(target_batch, "target_batch", maximum=MAX_BATCH_SIZE)
        result = search_batch_size(self, device, plain, limits)
        if target_batch is None:
            return result
        return replace(result, plans=plans_for(self, device, plain, limits, result, target_batch))

    def largest_value(
        self,
        name: str,
        batch_size: int,
        gpu: str | DeviceProfile,
        params: Mapping[str, Any] | None = None,
        *,
        bounds: Bounds | None = None,
    ) -> BatchSizeResult:
        """Return the largest value of the hyperparameter ``name`` that fits at a batch size."""
        return search_value(self, self.device(gpu), name, batch_size, plain_params(params), bounds or Bounds())

    def compare(
        self,
        gpus: Iterable[str | DeviceProfile] | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        batch_size: int | None = None,
        bounds: Bounds | None = None,
    ) -> Comparison:
        """Return what each card can do; None compares the whole catalogue."""
        from dnnmem_tune.config import list_devices

        chosen: Iterable[str | DeviceProfile] = list_devices() if gpus is None else gpus
        devices = [self.device(gpu) for gpu in chosen]
        return compare_devices(self, devices, plain_params(params), batch_size, bounds or Bounds())

    def remedies(
        self, batch_size: int, gpu: str | DeviceProfile, params: Mapping[str, Any] | None = None
    ) -> tuple[Remedy, ...]:
        """Return what would make a job fit that does not, each remedy estimated (seconds)."""
        return advise(self, self.device(gpu), plain_params(params), batch_size_of(batch_size))

    def estimator(
        self,
        batch_size: int,
        gpu: str | DeviceProfile,
        params: Mapping[str, Any] | None = None,
        *,
        reusable: bool = False,
    ) -> Estimator:
        """Return what estimates this batch size and, where its trace was fitted, any other.

        Args:
            batch_size: The batch size it will be asked for.
            gpu: The card.
            params: Hyperparameters.
            reusable: Trace for every batch size at once; otherwise the first batch size asked for costs one
                trace, and the next one those that make a fit.

        Raises as ``estimate`` does.
        """
        device = self.device(gpu)
        traced = self.traced(device, plain_params(params))
        first = self._first_batch.setdefault(id(traced), batch_size)
        alone = batch_size == first and not reusable
        trace = traced.exact_trace(batch_size) if alone else traced.trace_for(batch_size)
        return self.estimator_of(trace, device)

    def estimator_of(self, trace: MemoryTrace, device: DeviceProfile) -> Estimator:
        """Return the estimator of a trace on a card, with the session's allocator, workspace and margin.

        Raises:
            UsageError: If the margin leaves nothing of the card.

        """
        from dnnmem_tune.estimate.estimator import Estimator

        # The estimator holds the trace, so that the number stays its own while it is kept here.
        key = (id(trace), device)
        if key not in self._estimators:
            self._estimators[key] = Estimator(
                trace,
                device,
                policy=self.policy,
                conv_workspace=self.conv_workspace,
                safety_bytes=self.margin.nbytes,
                safety_fraction=self.margin.fraction,
            )
        self._estimators.move_to_end(key)
        estimator = self._estimators[key]
        while len(self._estimators) > _ESTIMATORS_KEPT:
            self._estimators.popitem(last=False)
        return estimator

    def traced(self, device: DeviceProfile, params: dict[str, Any]) -> TracedWorkload:
        """Return the workload opened for these plain hyperparameters and this kind of card."""
        key = json.dumps([params, self._kind(device)], sort_keys=True)
        if key not in self._traced:
            major, minor = device.compute_capability
            self._progress(f"tracing {self.name} for compute capability {major}.{minor}")
            self._traced[key] = self._worker(device).with_params(params)
        self._traced.move_to_end(key)
        while len(self._traced) > _TRACED_KEPT:
            self._first_batch.pop(id(self._traced.popitem(last=False)[1]), None)
        return self._traced[key]

    def _worker(self, device: DeviceProfile) -> TracedWorkload:
        """Return the workload with a process that traces any hyperparameters for this card's capability."""
        kind = self._kind(device)
        if kind not in self._workers:
            tracing = replace(
                self._tracing,
                compute_capability=device.compute_capability,
                total_bytes=device.total_bytes,
                num_sms=device.num_sms,
            )
            self._workers[kind] = open_workload(self.workload, params={}, tracing=tracing)
        self._workers.move_to_end(kind)
        # A closed one keeps its traces; only a trace that is still missing would start its process again.
        for used_before in list(self._workers.values())[:-_PROCESSES_KEPT]:
            used_before.close()
        return self._workers[kind]

    def _kind(self, device: DeviceProfile) -> tuple[int, ...]:
        """What of a card its traces depend on: the capability, or each thing that PyTorch itself asks it for."""
        if self._is_card_specific is None:
            self._is_card_specific = is_card_specific(self._tracing)
        if not self._is_card_specific:
            return device.compute_capability
        return (*device.compute_capability, device.num_sms, device.total_bytes)


def _one_of(value: object, choices: tuple[str, ...], name: str) -> None:
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _positive(value: Any, name: str) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"{name} must be a number above 0, got {value!r}")
    return value
