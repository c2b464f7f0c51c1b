"""Traces of TensorFlow steps: small ones counted by hand, large ones against TensorFlow's GPU build."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dnnmem_tune import estimate
from dnnmem_tune.allocators.bfc import BfcAllocator
from dnnmem_tune.errors import DnnMemError, UsageError
from dnnmem_tune.frontends import Tracing, open_workload
from dnnmem_tune.ir.trace import Category, MemoryTrace
from dnnmem_tune.operators.scratch import KernelTarget, SizeTable
from dnnmem_tune.units import GIB

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")

HERE = Path(__file__).parent
RECORDED = json.loads((HERE.parents[1] / "recorded" / "tensorflow_gpu_2.21.0.json").read_text())
TARGET = KernelTarget(compute_capability=(7, 0), num_sms=80, threads_per_sm=2048)


def trace(workload: str, batch_size: int, recorder: str = "auto", **params: Any) -> MemoryTrace:
    """Return the trace of a workload at one batch size on a card of 16 GiB."""
    tracing = Tracing(
        framework="tensorflow",
        recorder=recorder,
        compute_capability=(7, 0),
        total_bytes=16 * GIB,
        num_sms=80,
        time_limit=900.0,
    )
    with open_workload(workload, params=params, tracing=tracing) as traced:
        return traced.exact_trace(batch_size)


def peak_in_use(found: MemoryTrace, without: str = "") -> int:
    """Return the peak of the chunks in use, operators of one kind not counted."""
    sizes = SizeTable(found, TARGET).at(1)
    if without:
        for index, storage in enumerate(found.storages):
            if found.operations[storage.operation].name == without and storage.category is Category.WORKSPACE:
                sizes[index] = 0
    allocator = BfcAllocator(None, 15334 << 20)
    assert allocator.run(found.events, sizes) == len(found.events)
    return allocator.peak.allocated_bytes


def recorded_peak(workload: str, batch_size: int, optimizer: str) -> int:
    """Return the peak of the later steps in TensorFlow's GPU build."""
    (row,) = (
        row
        for row in RECORDED["rows"]
        if (row["workload"], row["batch_size"], row["optimizer"]) == (workload, batch_size, optimizer)
    )
    return max(row["peaks"][1:])


def test_a_step_of_one_layer_counts_what_its_definition_says() -> None:
    """GIVEN y = x W with squared error and SGD THEN weight, gradient and batch are there, each once."""
    found = trace(f"{HERE / 'workloads.py'}:dense", 500)
    sizes = SizeTable(found, TARGET).at(1)
    resident = [
        (storage.category, nbytes)
        for storage, nbytes in zip(found.storages, sizes, strict=True)
        if found.operations[storage.operation].phase == "build" and nbytes >= 1000
    ]

    assert (Category.WEIGHT, 4_000_000) in resident
    batch = [n for s, n in zip(found.storages, sizes, strict=True) if s.category is Category.INPUT and n]
    assert batch == [2_000_000, 2_000_000]
    gradients = [n for s, n in zip(found.storages, sizes, strict=True) if s.category is Category.WEIGHT_GRADIENT]
    assert gradients.count(4_000_000) == 3, "one in each of three steps"


@pytest.mark.parametrize(("batch_size", "optimizer"), [(32, "sgd"), (8, "adam")])
def test_vgg16_peaks_where_the_gpu_build_does(batch_size: int, optimizer: str) -> None:
    """Within 0.1 %: graph, order, forwarding, kernels' temporaries and the allocator all agree."""
    expected = recorded_peak("vgg16", batch_size, optimizer)

    assert peak_in_use(trace("vgg16", batch_size, optimizer=optimizer)) == pytest.approx(expected, rel=0.001)


def test_the_lstm_peaks_where_the_gpu_build_does_but_for_what_cudnn_keeps() -> None:
    """The stub libraries behind the recording ask for no reserve and no workspace; the model does."""
    found = trace("lstm", 32, optimizer="adam")
    expected = recorded_peak("lstm", 32, "adam")
    reserve = 2 * (35 * 32 * 650 * 6 * 4)
    workspace = 35 * 32 * 650 * 4 * 4

    assert peak_in_use(found) - expected <= reserve + workspace + 0.01 * expected
    assert peak_in_use(found) - expected >= reserve - 0.01 * expected


def test_a_loop_keeps_what_every_iteration_appends() -> None:
    """Twice as many steps keep about twice as much for the backward pass; the note says how it was counted."""
    short = trace(f"{HERE / 'workloads.py'}:loop", 64, seq_len=20)
    long = trace(f"{HERE / 'workloads.py'}:loop", 64, seq_len=40)
    appended = 20 * 64 * 256 * 4

    assert peak_in_use(long) - peak_in_use(short) >= 3 * appended
    assert any("is counted by one iteration of 20" in note for note in short.coverage.notes)


def test_recomputing_activations_is_traced() -> None:
    """A custom step with ``tf.recompute_grad`` runs, and every operator has a size."""
    found = trace(f"{HERE / 'workloads.py'}:custom", 16)

    assert not found.coverage.unknown_operators
    assert peak_in_use(found) >= 2 * 4_000_000


def test_the_fast_recorder_says_that_it_skipped_the_optimiser() -> None:
    """Its answer may be far off, so it must not look like the other."""
    found = trace(f"{HERE / 'workloads.py'}:dense", 8, recorder="fake")

    assert any("was not optimised" in note for note in found.coverage.notes)


def test_a_model_that_keras_compiles_with_xla_says_what_is_estimated() -> None:
    """The default of Keras on a GPU is XLA, whose memory is another."""
    found = trace(f"{HERE / 'workloads.py'}:dense", 8, jit="auto")

    assert any("Keras compiles this step with XLA" in note for note in found.coverage.notes)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("uncompiled", r"the model is not compiled; call model.compile"),
        ("unknown_shape", r"has a shape that is not known, \(8, None\); give every extent"),
        ("strings", r"holds strings, which do not live on a GPU"),
        ("nothing", r"build must return a compiled Keras model or a function .*; it returned a int"),
        ("missing", r"has no .*missing"),
    ],
)
def test_bad_workloads_are_refused_in_one_line(function: str, message: str) -> None:
    """Each says what was asked and what to do."""
    with pytest.raises(DnnMemError, match=message) as error:
        trace(f"{HERE / 'workloads.py'}:{function}", 8)
    assert "\n" not in str(error.value)


def test_an_unknown_model_is_refused_with_the_names_there_are() -> None:
    """A misspelt name must not be taken for a module."""
    with pytest.raises(DnnMemError, match=r"no TensorFlow workload 'vgg17'.*built in: bert-base, inception"):
        trace("vgg17", 8)


def test_the_emulated_recorder_is_for_pytorch() -> None:
    """Asking for it must not silently give another."""
    with pytest.raises(UsageError, match="recorder 'emulated' is for PyTorch; for TensorFlow choose 'auto'"):
        trace("vgg16", 8, recorder="emulated")


def test_the_library_estimates_a_keras_model_with_tensorflow_s_allocator() -> None:
    """The reserve of compute capability 7 is taken off, and the provenance names the allocator."""
    answer = estimate(
        f"{HERE / 'workloads.py'}:dense", batch_size=8, gpu="V100-16GB", framework="tensorflow", time_limit=900
    )

    assert answer.fits
    assert answer.provenance.allocator == "TensorFlow BFC allocator"
    assert answer.device.total_bytes - answer.limit_bytes == 1050 << 20
