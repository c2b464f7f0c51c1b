"""Small jobs with known memory, and a front-end that "traces" them without a framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dnnmem_tune.errors import DnnMemError, UsageError, WorkloadError
from dnnmem_tune.estimate.devices import DeviceProfile
from dnnmem_tune.frontends import Tracing
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.traced import TracedWorkload
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category, Coverage, Mark, MemoryTrace, Operation, Phase, Storage
from dnnmem_tune.units import GIB, MIB

CONTEXT_BYTES = 100 * MIB


def device(
    total_bytes: int = GIB,
    *,
    name: str = "test card",
    compute_capability: tuple[int, int] = (8, 0),
    context_uncertainty_bytes: int = 0,
) -> DeviceProfile:
    """Return a card whose context takes 100 MiB."""
    return DeviceProfile(
        name=name,
        total_bytes=total_bytes,
        context_bytes=CONTEXT_BYTES,
        context_uncertainty_bytes=context_uncertainty_bytes,
        compute_capability=compute_capability,
        num_sms=108,
        threads_per_sm=2048,
        source="a test",
    )


def job_trace(
    *, weight_bytes: int, activation_bytes: int, batch_size: int = 1, coverage: Coverage | None = None
) -> MemoryTrace:
    """Return a job of two steps that holds its weights throughout and one activation in each step.

    Sizes that are multiples of 2 MiB and at least 10 MiB make requested, allocated and reserved bytes equal.
    """
    operations = (
        Operation("aten::empty", "layer", Phase.BUILD, -1),
        Operation("aten::mm", "layer", Phase.FORWARD, 0),
        Operation("aten::mm", "layer", Phase.FORWARD, 1),
    )
    return MemoryTrace(
        storages=(
            Storage(Polynomial(weight_bytes), Category.WEIGHT, 0),
            Storage(Polynomial(activation_bytes), Category.ACTIVATION, 1),
            Storage(Polynomial(activation_bytes), Category.ACTIVATION, 2),
        ),
        operations=operations,
        events=(0, 1, ~1, 2, ~2),
        marks=(Mark("build", 1), Mark("step 0", 3), Mark("step 1", 5)),
        coverage=coverage or Coverage(num_operations=3),
        framework="test 1.0",
        recorder="a fake",
        batch_sizes=(batch_size,),
    )


@dataclass
class FakeWorkload:
    """A workload with known memory: ``weight_bytes`` and ``sample_bytes`` for each sample of the batch."""

    weight_bytes: int = 100 * MIB

    sample_bytes: int = 20 * MIB

    runs: Callable[[int, dict[str, Any]], bool] = lambda _batch_size, _params: True
    """Whether it runs at a batch size with these hyperparameters; else it raises, as a user's code does."""

    accepts: tuple[str, ...] = ()
    """Hyperparameters it knows; another is an error."""

    scale: Callable[[dict[str, Any]], float] = lambda _params: 1.0
    """How the hyperparameters change the activations."""

    coverage: Coverage | None = None

    failure: BaseException | None = None
    """What every trace ends with, if anything."""

    requests: list[RecordRequest] = field(default_factory=list)
    """Every trace that was asked for."""

    tracings: list[Tracing] = field(default_factory=list)
    """How the workload was opened, each time."""

    closed: int = 0

    def open(self, _workload: Any, *, params: dict[str, Any], tracing: Tracing) -> TracedWorkload:
        """Stand in for ``dnnmem_tune.frontends.open_workload``."""
        self.tracings.append(tracing)
        request = RecordRequest(
            workload="fake", batch_size=1, params=params, compute_capability=tracing.compute_capability
        )
        return TracedWorkload(self, request)

    def attempt(self, requests: Sequence[RecordRequest]) -> list[MemoryTrace | DnnMemError]:
        """Stand in for a recorder."""
        if self.failure is not None:
            raise self.failure
        self.requests += requests
        return [self._outcome(request) for request in requests]

    def close(self) -> None:
        """Count."""
        self.closed += 1

    def _outcome(self, request: RecordRequest) -> MemoryTrace | DnnMemError:
        unknown = sorted(set(request.params) - set(self.accepts))
        if unknown:
            return UsageError(f"this workload has no hyperparameter {unknown[0]!r}")
        if not self.runs(request.batch_size, request.params):
            return WorkloadError(f"train.py:7: ValueError: cannot run at batch {request.batch_size}")
        activation = int(self.sample_bytes * self.scale(request.params)) * request.batch_size
        return job_trace(
            weight_bytes=self.weight_bytes,
            activation_bytes=activation,
            batch_size=request.batch_size,
            coverage=self.coverage,
        )
