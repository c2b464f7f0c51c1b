"""Small models that the tests make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
"""The networks that the package itself ships."""

Shape = Sequence[int | str | None]


def value(name: str, shape: Shape | None, element: int = TensorProto.FLOAT) -> Any:
    """Return the declaration of a value."""
    return helper.make_tensor_value_info(name, element, shape)


def weight(name: str, *shape: int) -> Any:
    """Return a weight of zeros."""
    return numpy_helper.from_array(np.zeros(shape, dtype=np.float32), name)


def numbers(name: str, *values: int) -> Any:
    """Return a constant vector of whole numbers."""
    return numpy_helper.from_array(np.array(values, dtype=np.int64), name)


def make_model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Shape],
    outputs: Sequence[str],
    weights: Sequence[Any] = (),
    *,
    functions: Sequence[Any] = (),
    opset: int = 17,
) -> Any:
    """Return a model; shapes of outputs are left open."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [value(name, shape) for name, shape in inputs.items()],
        [value(name, None) for name in outputs],
        list(weights),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions))


def save(model: Any, folder: Path) -> Path:
    """Write a model to a file and return its path."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def perceptron(batch: int | str = "batch") -> Any:
    """Return two layers: 8 numbers to 16, a rectifier, 16 to 4."""
    return make_model(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="/first/Gemm"),
            helper.make_node("Relu", ["h"], ["r"], name="/first/Relu"),
            helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], name="/second/Gemm"),
        ],
        {"x": [batch, 8]},
        ["y"],
        [weight("w1", 8, 16), weight("b1", 16), weight("w2", 16, 4), weight("b2", 4)],
    )
