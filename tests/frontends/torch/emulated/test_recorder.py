"""A trace recorded on the emulated card is what PyTorch's allocator saw, with names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.policy import CachingPolicy, TieBreak
from dnnmem_tune.allocators.replay import Timeline, replay
from dnnmem_tune.errors import DnnMemError, WorkloadError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.emulated.client import EmulatedRecorder
from dnnmem_tune.frontends.torch.emulated.exact import ExactRun
from dnnmem_tune.ir.trace import Category, MemoryTrace, Phase
from dnnmem_tune.operators.convolution import MODELS
from dnnmem_tune.operators.scratch import KernelTarget, SizeTable

WORKLOADS = Path(__file__).with_name("workloads.py")
Opener = Callable[..., EmulatedRecorder]


def request(name: str, batch_size: int = 8, **params: Any) -> RecordRequest:
    """A request for one of the workloads of ``workloads.py``."""
    return RecordRequest(workload=str(WORKLOADS), batch_size=batch_size, params={"which": name, **params})


def record(opener: Opener, name: str, batch_size: int = 8, **params: Any) -> MemoryTrace:
    """The trace of one of the workloads."""
    asked = request(name, batch_size, **params)
    (trace,) = opener(asked.workload).record([asked])
    return trace


def run(opener: Opener, name: str, batch_size: int = 8, conv_workspace: str = "none", **params: Any) -> ExactRun:
    """What the allocator reports for one of the workloads."""
    asked = request(name, batch_size, **params)
    (outcome,) = opener(asked.workload).run([asked], conv_workspace=conv_workspace)
    assert isinstance(outcome, ExactRun), outcome
    return outcome


def replayed(trace: MemoryTrace, batch_size: int = 8, conv_workspace: str = "none") -> Timeline:
    """The trace in the allocator simulation."""
    target = KernelTarget(
        compute_capability=(8, 0), num_sms=108, threads_per_sm=2048, conv_workspace=conv_workspace
    )
    optional = [index for index, storage in enumerate(trace.storages) if storage.optional]
    sizes = SizeTable(trace, target).at(batch_size)
    policy = CachingPolicy(tie_break=TieBreak.of_pytorch(trace.framework.removeprefix("torch ")))
    return replay(trace.events, sizes, CachingAllocator(policy, 40 << 30), optional=optional)


@pytest.mark.parametrize("name", ["mlp", "convolutional", "half_precision", "recurrent", "named"])
def test_replay_equals_the_allocator_itself(open_recorder: Opener, name: str) -> None:
    """The trace holds every request in order: the simulation then ends at the very bytes PyTorch reports."""
    exact, timeline = run(open_recorder, name), replayed(record(open_recorder, name))

    assert timeline.peak.allocated_bytes == exact.peak_allocated_bytes
    assert timeline.peak.reserved_bytes == exact.peak_reserved_bytes
    assert timeline.final.allocated_bytes == exact.parts[-1].allocated_bytes


@pytest.mark.parametrize("conv_workspace", MODELS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_convolution_models_mean_the_same_in_a_trace_and_in_a_run(
    open_recorder: Opener, conv_workspace: str, channels_last: bool
) -> None:
    """One trace serves every model, since it holds each workspace where PyTorch takes it."""
    exact = run(open_recorder, "convolutional", 64, conv_workspace, channels_last=channels_last)
    trace = record(open_recorder, "convolutional", 64, channels_last=channels_last)
    timeline = replayed(trace, 64, conv_workspace)

    assert timeline.peak.allocated_bytes == exact.peak_allocated_bytes
    assert timeline.peak.reserved_bytes == exact.peak_reserved_bytes


def test_a_larger_model_takes_more(open_recorder: Opener) -> None:
    """Guards the test above: were every workspace nothing, it would hold for the wrong reason."""
    trace = record(open_recorder, "convolutional", 64)

    assert replayed(trace, 64, "limited").peak.allocated_bytes > replayed(trace, 64).peak.allocated_bytes


def test_weights_gradients_and_states_are_told_apart(open_recorder: Opener) -> None:
    """One hidden layer of 1024: 256 * 1024 + 1024 + 1024 * 10 + 10 numbers of four bytes."""
    trace = record(open_recorder, "mlp")
    weights = 4 * (256 * 1024 + 1024 + 1024 * 10 + 10)
    sizes = Counter[Category]()
    for storage in trace.storages:
        sizes[storage.category] += storage.size.at(8)  # type: ignore[union-attr]

    assert sizes[Category.WEIGHT] == weights
    assert sizes[Category.WEIGHT_GRADIENT] == 3 * weights, "made anew in each of three steps"
    assert sizes[Category.OPTIMIZER_STATE] >= 2 * weights, "two moments"
    assert sizes[Category.OPTIMIZER_STATE] < 2 * weights + 1024, "and step counters"
    assert sizes[Category.INPUT] == 3 * 8 * (256 * 4 + 8)
    assert sizes[Category.WORKSPACE] == 2 * 8_519_680, "cuBLAS, on the forward and on the backward thread"


def test_operators_know_their_module_and_phase(open_recorder: Opener) -> None:
    """A backward operator belongs to the module of its forward operator."""
    trace = record(open_recorder, "named")
    places = {(operation.module, operation.phase) for operation in trace.operations if operation.step == 1}

    assert {("encoder", Phase.FORWARD), ("decoder", Phase.FORWARD), ("decoder", Phase.BACKWARD)} <= places
    assert any(phase is Phase.OPTIMIZER for _module, phase in places) is False, "momentum was made in step 0"
    weights = [
        trace.operations[storage.operation].module
        for storage in trace.storages
        if storage.category is Category.WEIGHT
    ]
    assert weights == ["encoder", "encoder", "decoder", "decoder"]


def test_marks_end_the_parts(open_recorder: Opener) -> None:
    """Everything made while building lies before the first mark."""
    trace = record(open_recorder, "mlp")

    assert [mark.name for mark in trace.marks] == ["build", "step 0", "step 1", "step 2"]
    assert trace.marks[-1].event == len(trace.events)
    assert sum(operation.step == -1 for operation in trace.operations) == trace.marks[0].event == 4


def test_frozen_weights_have_no_gradient(open_recorder: Opener) -> None:
    """Three of four parameters are trained, each gradient is made in each of three steps."""
    trace = record(open_recorder, "named")

    gradients = [storage for storage in trace.storages if storage.category is Category.WEIGHT_GRADIENT]
    assert len(gradients) == 9


def test_a_branch_on_a_device_value_is_named(open_recorder: Opener) -> None:
    """Values read as zero: a reader must learn where a decision hangs on one."""
    exact = run(open_recorder, "branching")
    lines = WORKLOADS.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "if loss > 0" in text)

    assert exact.host_reads == {f"workloads.py:{line - 1}": 3, f"workloads.py:{line}": 3}
    assert exact.notes == (f"a branch hangs on a value of the device, which is zero here: workloads.py:{line}",)


def test_running_out_of_memory_is_an_answer(open_recorder: Opener) -> None:
    """PyTorch's own words, and what was there when it happened."""
    exact = run(open_recorder, "hungry", batch_size=60)

    assert not exact.fits
    assert exact.out_of_memory.startswith("CUDA out of memory. Tried to allocate 60.00 GiB. GPU 0 has a total")
    assert [part.name for part in exact.parts] == ["build", "step 0"]


def test_a_recording_does_not_run_out(open_recorder: Opener) -> None:
    """A trace must hold at any capacity, so its card has no end."""
    trace = record(open_recorder, "hungry", batch_size=60)

    assert trace.storages[0].size.at(60) == 60 << 30  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raising", "workloads.py:{line}: ValueError: the labels are missing"),
        ("wrong", "TypeError: build must return a function that runs one training step, it returned int"),
    ],
)
def test_a_workload_that_fails_is_an_error(open_recorder: Opener, name: str, message: str) -> None:
    """One line with the user's own file, and never a verdict."""
    asked = request(name)
    (outcome,) = open_recorder(asked.workload).run([asked])
    lines = WORKLOADS.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "the labels" in text)

    assert isinstance(outcome, WorkloadError)
    assert str(outcome) == message.format(line=line)


def test_a_workload_that_uses_the_gpu_while_it_is_imported(open_recorder: Opener, tmp_path: Path) -> None:
    """Children are forked, and CUDA cannot be used on both sides of a fork: each imports it by itself then."""
    file = tmp_path / "eager.py"
    file.write_text(
        "import torch\nx = torch.zeros(1000, device='cuda')\ndef build(batch_size, device): return lambda: x + 1\n"
    )
    (outcome,) = open_recorder(file).run([replace(request("mlp"), workload=str(file), params={})])

    assert isinstance(outcome, ExactRun), outcome
    assert outcome.peak_allocated_bytes == 2 * 4096


def test_weights_on_the_cpu_take_no_host_memory(open_recorder: Opener) -> None:
    """Ten gigabytes are reserved and never touched: the limit of a worker is below that."""
    exact = run(open_recorder, "enormous", batch_size=2)

    assert exact.parts[0].allocated_bytes == 10 * 16384 * 16384 * 4
    assert exact.fits


def test_both_recorders_tell_the_same_categories(open_recorder: Opener) -> None:
    """Weights, gradients and states are facts of the workload, whoever records it."""
    pytest.importorskip("torch")
    from dnnmem_tune.frontends.torch.client import TorchRecorder

    asked = request("mlp")
    fake = TorchRecorder(asked.workload, compute_capability=(8, 0), total_bytes=40 << 30, num_sms=108)
    try:
        traces = [record(open_recorder, "mlp"), *fake.record([asked])]
    except DnnMemError as error:  # this interpreter's PyTorch cannot run the fake recorder
        pytest.skip(str(error))
    finally:
        fake.close()
    settled = (Category.WEIGHT, Category.WEIGHT_GRADIENT, Category.OPTIMIZER_STATE)
    emulated, faked = (
        {category: sorted(s.size.at(8) for s in trace.storages if s.category is category) for category in settled}  # type: ignore[union-attr]
        for trace in traces
    )
    assert emulated == faked
