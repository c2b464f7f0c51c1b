"""Real training code is traced as it is, and what cannot be traced is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dnnmem_tune.errors import UnsupportedError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.client import TorchRecorder
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category, MemoryTrace, Phase

PROGRAM = Path(__file__).parent / "programs" / "habits.py"


@pytest.fixture(scope="module")
def recorder() -> Iterator[TorchRecorder]:
    """One worker for all of them."""
    recorder = TorchRecorder(
        f"{PROGRAM}:build", compute_capability=(8, 0), total_bytes=40 << 30, num_sms=108, time_limit=120
    )
    yield recorder
    recorder.close()


def trace_of(recorder: TorchRecorder, habit: str) -> MemoryTrace:
    """The trace at batch 8."""
    (trace,) = recorder.record([RecordRequest(workload="", batch_size=8, params={"habit": habit})])
    trace.check()
    return trace


@pytest.mark.parametrize(
    "habit",
    [
        "timing",
        "data_parallel",
        "cuda_methods",
        "sizes_from_values",
        "old_amp",
        "closure",
        "double_backward",
        "looks_for_compiled",
    ],
)
def test_common_habits_are_traced_without_reservation(recorder: TorchRecorder, habit: str) -> None:
    """Nothing in the coverage makes the estimate doubtful."""
    coverage = trace_of(recorder, habit).coverage
    assert coverage.bounded == {}
    assert coverage.unknown_operators == {}
    assert coverage.notes == ()


def test_a_loader_with_workers_and_pinned_memory_costs_the_batch_only(recorder: TorchRecorder) -> None:
    """What the loader does on the host takes no GPU memory."""
    plain = trace_of(recorder, "plain")
    loaded = trace_of(recorder, "data_loader")
    assert [s.size for s in loaded.storages] == [s.size for s in plain.storages]


def test_values_read_on_the_host_are_counted_by_line(recorder: TorchRecorder) -> None:
    """A control flow that depends on them may be another in a real run; the reader must know where."""
    places = trace_of(recorder, "reads_values").coverage.host_reads
    lines = PROGRAM.read_text().splitlines()
    read = {lines[int(place.split(":")[1]) - 1].strip() for place in places}
    assert "float(loss)" in read
    assert any(".argmax(1)" in line for line in read)


def test_sizes_that_depend_on_values_are_bounded_and_said(recorder: TorchRecorder) -> None:
    """A mask selects at most everything."""
    bounded = trace_of(recorder, "data_dependent").coverage.bounded
    assert set(bounded) == {"aten::nonzero", "aten::_unique2", "aten::bincount", "aten::masked_select"}


def test_a_side_stream_is_traced_with_a_note(recorder: TorchRecorder) -> None:
    """The estimate stands but for blocks that wait for the stream."""
    (note,) = trace_of(recorder, "side_stream").coverage.notes
    assert note.startswith("a side stream is used: it is taken for the default stream")


def test_a_trace_writes_no_file_of_the_user(recorder: TorchRecorder) -> None:
    """A checkpoint of yesterday's run is worth more than an estimate."""
    before = PROGRAM.read_bytes()
    trace = trace_of(recorder, "saves_a_file")
    assert PROGRAM.read_bytes() == before
    assert trace.coverage.notes == ("torch.save wrote nothing: a trace has no weights",)


def test_an_operator_without_a_shape_rule_is_named(recorder: TorchRecorder) -> None:
    """Its result is known from a run on zeros, its scratch is not."""
    assert trace_of(recorder, "without_a_shape_rule").coverage.unknown_operators == {"aten::geqrf": 3}


@pytest.mark.parametrize(
    ("habit", "message"),
    [
        ("graph_capture", "CUDA graphs are not modelled"),
        ("distributed", "torch.distributed: its buckets and communication are not modelled on fake tensors"),
        ("custom_operator", "no shape rule for operator 'extension"),
        ("least_squares", "what operator 'aten.linalg_lstsq.default' gives depends on values"),
        ("lazy_layers", "lazy modules cannot be built on fake tensors; give the layer its input size"),
    ],
)
def test_what_is_not_modelled_is_refused_where_it_is_used(
    recorder: TorchRecorder, habit: str, message: str
) -> None:
    """A wrong number would be worse than none."""
    with pytest.raises(UnsupportedError) as error:
        trace_of(recorder, habit)
    assert message in str(error.value)
    assert str(error.value).startswith("habits.py:")


def test_every_storage_of_a_plain_step_is_told_by_what_it_is_for(recorder: TorchRecorder) -> None:
    """Two layers with weights and biases: 16 x 32 + 32 + 32 x 4 + 4 numbers of four bytes."""
    trace = trace_of(recorder, "plain")
    sizes = dict.fromkeys(Category, 0)
    for storage in trace.storages:
        if trace.operations[storage.operation].phase is Phase.BUILD:
            sizes[storage.category] += storage.size.at(8)  # type: ignore[union-attr]
    assert sizes[Category.WEIGHT] == 4 * (16 * 32 + 32 + 32 * 4 + 4)
    inputs = [s for s in trace.storages if s.category is Category.INPUT]
    batches = [s.size.at(8) for s in inputs if s.size != Polynomial(4)]  # type: ignore[union-attr]
    assert batches == [4 * 8 * 16] * 3
    gradients = [s for s in trace.storages if s.category is Category.WEIGHT_GRADIENT]
    assert len(gradients) == 4 * 3


def test_modules_are_named_as_the_user_names_them(recorder: TorchRecorder) -> None:
    """Forward and backward operators of a layer carry the same path."""
    operations = trace_of(recorder, "plain").operations
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        paths = {operation.module for operation in operations if operation.phase is phase}
        assert {"0", "1", "2"} <= paths
