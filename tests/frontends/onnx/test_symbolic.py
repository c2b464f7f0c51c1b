"""ONNX Runtime's symbolic inference says what neither onnx nor this package knows."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")

from onnx import helper

from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.onnx.recorder import OnnxRecorder
from dnnmem_tune.frontends.onnx.symbolic import symbolic_shapes
from dnnmem_tune.ir.trace import MemoryTrace
from tests.onnx_models import make_model, save, weight


def trace_of(folder: Path) -> MemoryTrace:
    """Return the trace of an operator that ``onnx`` has no schema for, its output wider than all its inputs."""
    node = helper.make_node("PackedAttention", ["x", "w", "b", "offset", "lengths"], ["y"], domain="com.microsoft")
    node.attribute.append(helper.make_attribute("num_heads", 1))
    model = make_model([node], {"x": [6, 8]}, ["y"], [weight("w", 8, 24), weight("b", 24)])
    model.graph.input.append(helper.make_tensor_value_info("offset", 6, [1, 6]))
    model.graph.input.append(helper.make_tensor_value_info("lengths", 6, [2]))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    recorder = OnnxRecorder(save(model, folder), train_as=None, memory_limit=8 << 30)
    return recorder.record(RecordRequest(workload="model.onnx", batch_size=6))


def test_an_operator_of_onnx_runtime_is_known_through_it(tmp_path: Path) -> None:
    """Where the package is installed nothing is left unknown."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("sympy")

    assert not trace_of(tmp_path).coverage.unknown_operators


def test_without_onnx_runtime_it_is_counted_as_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate goes on, and says so."""
    monkeypatch.setattr("dnnmem_tune.frontends.onnx.recorder.symbolic_shapes", lambda *_: {})

    assert trace_of(tmp_path).coverage.unknown_operators == {"com.microsoft.PackedAttention": 1}


def test_a_graph_that_symbolic_inference_cannot_read_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own errors are no reason to refuse the model, and nothing is left in the user's folder."""
    monkeypatch.chdir(tmp_path)
    node = helper.make_node("Magic", ["x"], ["y"], domain="local")

    assert symbolic_shapes(make_model([node], {"x": ["batch", 8]}, ["y"]), {"x": (2, 8)}) == {}
    assert not list(tmp_path.iterdir())
