"""A training step from a forward graph: what is kept, and what each target framework makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")

from onnx import helper

from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.onnx.optimizers import parse_optimizer
from dnnmem_tune.frontends.onnx.recorder import OnnxRecorder
from dnnmem_tune.ir.fit import confirms, fit_traces
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category, MemoryTrace
from tests.onnx_models import make_model, perceptron, save, weight


def trace_of(model: Any, folder: Path, *, batch: int = 2, train_as: str = "pytorch", **params: Any) -> MemoryTrace:
    """Return the trace of training a model."""
    recorder = OnnxRecorder(save(model, folder), train_as=train_as, memory_limit=8 << 30)
    trace = recorder.record(RecordRequest(workload="model.onnx", batch_size=batch, params=params))
    trace.check()
    return trace


def bytes_by_category(trace: MemoryTrace) -> dict[Category, int]:
    """Return the bytes requested in the build and the first step, by category."""
    first_step = next(mark.event for mark in trace.marks if mark.name == "step 0")
    totals: dict[Category, int] = {}
    for code in trace.events[:first_step]:
        storage = trace.storages[code] if code >= 0 else None
        # What a convolution takes for a moment is a rule, and no number.
        if storage is not None and isinstance(storage.size, Polynomial):
            totals[storage.category] = totals.get(storage.category, 0) + storage.size.at(2)
    return totals


def peak(trace: MemoryTrace) -> int:
    """Return the peak of the bytes requested."""
    live = most = 0
    for code in trace.events:
        size = trace.storages[code if code >= 0 else ~code].size
        assert isinstance(size, Polynomial)
        live += size.constant if code >= 0 else -size.constant
        most = max(most, live)
    return most


WEIGHTS = 4 * (8 * 16 + 16 + 16 * 4 + 4)


def test_a_perceptron_is_trained_as_by_hand(tmp_path: Path) -> None:
    """Hidden, rectified and result; their gradients; a gradient per weight and two states."""
    totals = bytes_by_category(trace_of(perceptron(), tmp_path, optimizer="adam"))

    assert totals[Category.WEIGHT] == totals[Category.WEIGHT_GRADIENT] == WEIGHTS
    assert totals[Category.OPTIMIZER_STATE] == 2 * WEIGHTS
    assert totals[Category.ACTIVATION] == 4 * 2 * (16 + 16 + 4)
    # Of the result, of the rectified and of the hidden values; the input has none.
    assert totals[Category.OUTPUT_GRADIENT] == 4 * 2 * (4 + 16 + 16)
    assert totals[Category.WORKSPACE] == 2 * 8_519_680 + WEIGHTS


def test_graph_executors_rectify_in_place(tmp_path: Path) -> None:
    """ONNX Runtime forwards the hidden buffer, which the gradient of the rectifier does not need."""
    totals = bytes_by_category(trace_of(perceptron(), tmp_path, train_as="ort"))

    assert totals[Category.ACTIVATION] == 4 * 2 * (16 + 4)


def test_tensorflow_gives_a_gradient_back_once_it_is_applied(tmp_path: Path) -> None:
    """So that not all of them are there at once; the layers are wide, to make gradients decide the peak."""
    nodes, weights = [], []
    for layer in range(4):
        nodes.append(helper.make_node("MatMul", [f"v{layer}", f"w{layer}"], [f"v{layer + 1}"]))
        weights.append(weight(f"w{layer}", 256, 256))
    model = make_model(nodes, {"v0": ["batch", 256]}, ["v4"], weights)

    at_once = peak(trace_of(model, tmp_path, train_as="tensorflow"))
    at_the_end = peak(trace_of(model, tmp_path, train_as="ort"))

    assert at_the_end - at_once >= 2 * 256 * 256 * 4


def test_the_product_with_a_constant_keeps_nothing(tmp_path: Path) -> None:
    """Its gradient takes the constant alone: the activation before it is given back in the forward pass."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "half"], ["b"]),
        helper.make_node("Mul", ["b", "half"], ["c"]),
        helper.make_node("Mul", ["c", "half"], ["d"]),
        helper.make_node("Mul", ["d", "half"], ["y"]),
    ]
    model = make_model(nodes, {"x": ["batch", 1024]}, ["y"], [weight("w", 1024, 1024), weight("half")])

    trace = trace_of(model, tmp_path)
    forward = peak(trace) - 3 * 1024 * 1024 * 4 - 2 * 8_519_680

    # Never more than two values of the chain, with the input, and gradients of as many.
    assert forward <= 5 * 2 * 1024 * 4


@pytest.mark.parametrize(("train_as", "kept"), [("pytorch", 8), ("ort", 8), ("tensorflow", 0)])
def test_the_places_of_maxima_are_kept_where_the_framework_keeps_them(
    train_as: str, kept: int, tmp_path: Path
) -> None:
    """A 64-bit number for each; TensorFlow looks for them again, as ONNX Runtime's gradient graph does not."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    model = make_model(nodes, {"x": ["batch", 3, 8, 8]}, ["y"], [weight("w", 4, 3, 1, 1)])

    totals = bytes_by_category(trace_of(model, tmp_path, train_as=train_as))

    assert totals[Category.ACTIVATION] == 2 * 4 * (8 * 8 * 4 + 4 * 4 * (4 + kept))


def test_half_precision_halves_weights_and_activations(tmp_path: Path) -> None:
    """Pure half precision: everything that is a float has two bytes."""
    single = bytes_by_category(trace_of(perceptron(), tmp_path))
    half = bytes_by_category(trace_of(perceptron(), tmp_path, precision="bf16"))

    for category in (Category.WEIGHT, Category.ACTIVATION, Category.WEIGHT_GRADIENT, Category.INPUT):
        assert 2 * half[category] == single[category]


def test_an_operator_without_a_rule_is_counted(tmp_path: Path) -> None:
    """No verdict is given on what is not known."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Magic", ["a"], ["y"], domain="local"),
    ]
    model = make_model(nodes, {"x": ["batch", 8]}, ["y"], [weight("w", 8, 8)])

    assert trace_of(model, tmp_path).coverage.unknown_operators == {"local.Magic": 1}


def test_a_loop_keeps_what_each_iteration_needs(tmp_path: Path) -> None:
    """Nine more iterations keep nine times what one does."""
    few, many = (bytes_by_category(trace_of(recurrent(trips), tmp_path))[Category.ACTIVATION] for trips in (1, 10))

    # Per iteration: the state that the product needs, the result that the tangent needs, and the stacked one.
    assert many - few == 9 * 3 * 2 * 8 * 4


def recurrent(trips: int) -> Any:
    """Return a loop of a product and a hyperbolic tangent."""
    import numpy as np
    from onnx import TensorProto, numpy_helper

    from tests.onnx_models import value

    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["moved"]),
            helper.make_node("Tanh", ["moved"], ["next"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("state", None)],
        [value("go_on", [], TensorProto.BOOL), value("next", None), value("next", None)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["start"]),
        helper.make_node("Loop", ["n", "", "start"], ["last", "all"], body=body),
    ]
    trip_count = numpy_helper.from_array(np.array(trips, dtype=np.int64), "n")
    return make_model(nodes, {"x": ["batch", 8]}, ["last", "all"], [weight("w", 8, 8), trip_count])


@pytest.mark.parametrize("train_as", ["pytorch", "tensorflow", "ort"])
def test_sizes_fit_a_line_in_the_batch_size(train_as: str, tmp_path: Path) -> None:
    """Two batch sizes give all others."""
    traces = {batch: trace_of(perceptron(), tmp_path, batch=batch, train_as=train_as) for batch in (8, 16)}

    fitted = fit_traces(traces)

    assert isinstance(fitted, MemoryTrace)
    assert confirms(fitted, 100, trace_of(perceptron(), tmp_path, batch=100, train_as=train_as)) is None


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("sgd", 0),
        ("sgd(momentum=0.9)", 1),
        ("SGD(momentum=0)", 0),
        ("adam", 2),
        ("adamw(lr=1e-3, amsgrad=True)", 3),
        ("rmsprop(momentum=0.5)", 2),
    ],
)
def test_optimizers_keep_what_their_options_say(text: str, states: int) -> None:
    """One tensor of the weight's size for each state."""
    assert len(parse_optimizer(text).states) == states


def test_text_that_names_no_optimizer_is_refused() -> None:
    """Half a call is not guessed at."""
    with pytest.raises(UsageError, match=r"^there is no optimizer 'adam\(' for ONNX models"):
        parse_optimizer("adam(")
