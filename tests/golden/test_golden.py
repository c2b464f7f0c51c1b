"""Traces of small networks as text, reviewed like code.

To write them anew after a change that is meant to change them, remove the file and run
the test: it fails once, writes the file, and the difference is reviewed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.client import TorchRecorder
from dnnmem_tune.frontends.traced import TracedWorkload
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.text import print_trace
from dnnmem_tune.ir.trace import Category, MemoryTrace

HERE = Path(__file__).parent
PROGRAM = HERE.parent / "frontends/torch/programs/small.py"

CASES = {
    "motivating": {"network": "motivating"},
    "residual_adam": {"network": "residual", "optimizer": "Adam"},
    "residual_bf16": {"network": "residual", "precision": "bf16"},
    "recurrent": {"network": "recurrent"},
}


@pytest.fixture(scope="module")
def recorder() -> Iterator[TorchRecorder]:
    """One worker for all of them."""
    recorder = TorchRecorder(f"{PROGRAM}:build", compute_capability=(8, 0), total_bytes=40 << 30, num_sms=108)
    yield recorder
    recorder.close()


def fitted(recorder: TorchRecorder, name: str) -> MemoryTrace:
    """The trace for every batch size."""
    request = RecordRequest(workload="", batch_size=1, params=CASES[name], num_steps=2)
    trace = TracedWorkload(recorder, request).trace_for(12)
    assert trace.batch_sizes == (8, 16, 12)
    return trace


@pytest.mark.parametrize("name", CASES)
def test_a_trace_is_the_one_that_was_reviewed(recorder: TorchRecorder, name: str) -> None:
    """Any change of what a step allocates, or when, shows here line by line."""
    path = HERE / f"{name}.txt"
    text = print_trace(fitted(recorder, name))
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} was not there and has been written; review it and run again")
    assert text.splitlines() == path.read_text().splitlines()


def test_the_motivating_example_of_dnnmem_has_the_sizes_of_its_tables(recorder: TorchRecorder) -> None:
    """Weights, outputs and gradients by hand, with 4 bytes an element (Tables 2 and 3 of the paper)."""
    trace = fitted(recorder, "motivating")

    def sizes(category: Category, step: int) -> list[Polynomial]:
        return [
            storage.size
            for storage in trace.storages
            if storage.category is category
            and trace.operations[storage.operation].step == step
            and isinstance(storage.size, Polynomial)
        ]

    weights = [8 * 3 * 3 * 3, 8, 1800 * 10, 10]
    assert sizes(Category.WEIGHT, -1) == [Polynomial(4 * count) for count in weights]
    assert sorted(size.constant for size in sizes(Category.WEIGHT_GRADIENT, 1)) == sorted(4 * c for c in weights)
    assert sizes(Category.INPUT, 1) == [Polynomial(0, 4 * 3 * 32 * 32)]
    convolution, pooled = Polynomial(0, 4 * 8 * 30 * 30), Polynomial(0, 4 * 8 * 15 * 15)
    activations = sizes(Category.ACTIVATION, 1)
    assert convolution in activations
    assert pooled in activations
    # The gradient of the pooled features is the linear layer's, that of the convolution's output the pool's.
    assert {pooled, convolution} <= set(sizes(Category.OUTPUT_GRADIENT, 1))
