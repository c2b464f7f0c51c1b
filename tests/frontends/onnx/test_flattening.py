"""Every tensor of a model gets a size; bodies, functions and shape arithmetic are walked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("onnx")

import numpy as np
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.onnx.dimensions import read_dimensions
from dnnmem_tune.frontends.onnx.flat import FlatModel
from dnnmem_tune.frontends.onnx.flattening import Flattener
from tests.onnx_models import make_model, numbers, perceptron, value, weight


def flatten(model: Any, batch: int = 2, dims: Mapping[str, int] | None = None, **options: Any) -> FlatModel:
    """Return the flat model at a batch size."""
    dimensions = read_dimensions(model)
    shapes = dimensions.bind(batch, dims or {})
    return Flattener(model, shapes, batch=(batch, dimensions.fixed_batch), **options).flatten()


def test_every_value_of_a_perceptron_has_its_shape() -> None:
    """Shapes follow from the input's; weights are those that a node reads."""
    flat = flatten(perceptron(), 3)

    assert flat.types["h"].shape == (3, 16)
    assert flat.types["y"].nbytes == 3 * 4 * 4
    assert flat.weights == ["w1", "b1", "w2", "b2"]


def test_a_fixed_batch_is_replaced_in_inputs_and_reshape_targets() -> None:
    """Exporters write the batch of the example into both."""
    model = make_model(
        [helper.make_node("Reshape", ["x", "target"], ["y"])], {"x": [1, 3, 4]}, ["y"], [numbers("target", 1, 12)]
    )

    assert flatten(model, 5).types["y"].shape == (5, 12)


def test_shape_arithmetic_takes_no_device_memory() -> None:
    """A target computed from Shape, Gather and Concat is a value, and not a node that runs."""
    model = make_model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
            helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
            helper.make_node("Reshape", ["x", "target"], ["y"]),
        ],
        {"x": ["batch", 3, "length"]},
        ["y"],
        [numbers("zero", 0), numbers("rest", -1)],
    )

    flat = flatten(model, 4, {"length": 10})

    assert [node.op for node in flat.nodes] == ["Reshape"]
    assert flat.types["y"].shape == (4, 30)


def test_what_is_made_of_weights_alone_is_a_weight() -> None:
    """The runtime computes it once; the model's weights then are the results."""
    model = make_model(
        [helper.make_node("Transpose", ["w"], ["wt"]), helper.make_node("MatMul", ["x", "wt"], ["y"])],
        {"x": ["batch", 8]},
        ["y"],
        [weight("w", 4096, 8)],
    )

    flat = flatten(model)

    assert [node.op for node in flat.nodes] == ["MatMul"]
    assert flat.weights == ["wt"]


def test_quantised_weights_stay_quantised() -> None:
    """The runtime does not fold DequantizeLinear: the weight has one byte per element."""
    model = make_model(
        [
            helper.make_node("DequantizeLinear", ["q", "scale"], ["w"]),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        {"x": ["batch", 8]},
        ["y"],
        [
            numpy_helper.from_array(np.zeros((8, 16), dtype=np.int8), "q"),
            numpy_helper.from_array(np.array(1.0, dtype=np.float32), "scale"),
        ],
    )

    flat = flatten(model)

    assert flat.types["q"].nbytes == 128
    assert [node.op for node in flat.nodes] == ["DequantizeLinear", "MatMul"]


def branch(name: str, width: int) -> Any:
    """Return a branch that multiplies the outer x to a width."""
    return helper.make_graph(
        [helper.make_node("MatMul", ["x", f"{name}_w"], [f"{name}_y"])],
        name,
        [],
        [value(f"{name}_y", None)],
        [weight(f"{name}_w", 8, width)],
    )


def conditional(condition: Any) -> Any:
    """Return a model with two branches, to 16 and to 64 numbers."""
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("then", 16), else_branch=branch("else", 64))
    if condition is None:
        cast = helper.make_node("Cast", ["flag"], ["c"], to=TensorProto.BOOL)
        return make_model([cast, node], {"x": ["batch", 8], "flag": []}, ["y"])
    return make_model([node], {"x": ["batch", 8]}, ["y"], [numpy_helper.from_array(np.array(condition), "c")])


@pytest.mark.parametrize(("condition", "width"), [(True, 16), (False, 64), (None, 64)])
def test_the_taken_branch_is_walked_or_the_larger_one(condition: bool | None, width: int) -> None:
    """A condition that depends on data is bounded by the branch with more bytes, and said to be."""
    flat = flatten(conditional(condition))

    (output,) = flat.outputs
    assert flat.types[output].shape == (2, width)
    assert dict(flat.bounded) == ({"If": 1} if condition is None else {})


def loop(trips: Any | None) -> Any:
    """Return a loop that doubles x and stacks every iteration's value."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "state"], ["twice"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("state", None)],
        [value("go_on", [], TensorProto.BOOL), value("twice", None), value("twice", None)],
    )
    nodes = [
        helper.make_node("Loop", ["n" if trips is not None else "", "", "x"], ["last", "all"], body=body, name="L")
    ]
    weights = [numpy_helper.from_array(np.array(trips, dtype=np.int64), "n")] if trips is not None else []
    return make_model(nodes, {"x": ["batch", 8]}, ["last", "all"], weights)


def test_a_loop_stacks_as_often_as_its_constant_says() -> None:
    """The trip count is read from the file."""
    flat = flatten(loop(5))

    assert flat.types[flat.outputs[1]].shape == (5, 2, 8)
    assert next(node for node in flat.nodes if node.op == "Add").times == 5


def test_a_trip_count_that_is_not_in_the_file_can_be_given() -> None:
    """Without it once is taken, which is counted as unknown."""
    assert flatten(loop(None), trip_counts={"L": 7}).types["L/all"].shape == (7, 2, 8)
    assert dict(flatten(loop(None)).unknown) == {"Loop": 1}


def test_local_functions_are_expanded_with_the_attributes_of_the_call() -> None:
    """A function's node may take an attribute of the call."""
    inner = helper.make_node("Concat", ["a", "a"], ["b"])
    inner.attribute.add(name="axis", ref_attr_name="along", type=AttributeProto.INT)
    function = helper.make_function(
        "local", "Double", ["a"], ["b"], [inner], [helper.make_opsetid("", 17)], ["along"]
    )
    call = helper.make_node("Double", ["x"], ["y"], domain="local", name="call", along=1)

    flat = flatten(make_model([call], {"x": ["batch", 8]}, ["y"], functions=[function]))

    assert flat.types[flat.outputs[0]].shape == (2, 16)
    assert flat.nodes[0].module == "call"


def test_what_depends_on_data_is_bounded_and_counted() -> None:
    """As many indices as elements is the most that NonZero can give; what follows has a size too."""
    model = make_model(
        [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT)],
        {"x": ["batch", 8]},
        ["y"],
    )

    flat = flatten(model, 3)

    assert flat.types["i"].shape == (2, 24)
    assert flat.types["y"].shape == (2, 24)
    assert dict(flat.bounded) == {"NonZero": 1}


def test_an_operator_of_an_unknown_domain_is_counted_as_unknown() -> None:
    """Its output is taken to be as large as its largest input."""
    model = make_model([helper.make_node("Magic", ["x"], ["y"], domain="local")], {"x": ["batch", 8]}, ["y"])

    flat = flatten(model)

    assert dict(flat.unknown) == {"local.Magic": 1}
    assert flat.types["y"].shape == (2, 8)


def test_nodes_are_put_in_order() -> None:
    """A file that lists a consumer first is read all the same."""
    model = perceptron()
    nodes = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)

    assert [node.name for node in flatten(model).nodes] == ["/first/Gemm", "/first/Relu", "/second/Gemm"]


def test_a_tensor_of_terabytes_is_never_made() -> None:
    """A few bytes in a file can ask for any size; it is counted, not filled."""
    model = make_model(
        [helper.make_node("ConstantOfShape", ["s"], ["huge"]), helper.make_node("ReduceSum", ["huge"], ["y"])],
        {"x": ["batch", 8]},
        ["y"],
        [numbers("s", 1 << 20, 1 << 20)],
    )

    flat = flatten(model)

    assert flat.types["huge"].nbytes == 4 << 40


def looping() -> Any:
    """Return a model whose two nodes wait for each other."""
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["b"], name="two"),
    ]
    return make_model(nodes, {"x": ["batch", 8]}, ["b"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (looping(), "the graph is cyclic: node 'one' (Add) waits for its own result"),
        (
            make_model([helper.make_node("Relu", ["z"], ["y"], name="r")], {"x": ["batch", 8]}, ["y"]),
            "node 'r' (Relu) reads 'z', which nothing makes",
        ),
        (
            make_model([helper.make_node("Nonsense", ["x"], ["y"], name="r")], {"x": ["batch", 8]}, ["y"]),
            "node 'r' calls Nonsense, which is no operator of the model's opset",
        ),
        (
            make_model(
                [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")],
                {"x": ["batch", 8]},
                ["y"],
                [weight("w", 9, 4)],
            ),
            "node 'm' cannot take what it gets: [ShapeInferenceError] Incompatible dimensions",
        ),
    ],
)
def test_a_graph_that_cannot_run_is_refused_in_one_line(model: Any, message: str) -> None:
    """The node is named, and so is what is wrong with it."""
    with pytest.raises(WorkloadError) as caught:
        flatten(model)

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_bias_keeps_its_shape_when_the_batch_is_replaced() -> None:
    """Its first extent is one because it is broadcast, and not because the batch was one."""
    model = make_model(
        [helper.make_node("Reshape", ["bias", "target"], ["b"]), helper.make_node("Add", ["x", "b"], ["y"])],
        {"x": [1, 8, 2, 2]},
        ["y"],
        [weight("bias", 8), numbers("target", 1, -1, 1, 1)],
    )

    assert flatten(model, 4).types["b"].shape == (1, 8, 1, 1)


def test_a_weight_with_a_negative_extent_is_refused() -> None:
    """Its size would be negative, and so would the estimate."""
    model = perceptron()
    model.graph.initializer[0].dims[0] = -8

    with pytest.raises(WorkloadError, match=r"weight 'w1' has the shape \[-8, 16\]; no extent can be negative"):
        flatten(model)
