"""Which dimension is the batch, and what may be said about the others."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("onnx")

from onnx import helper

from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.onnx.dimensions import read_dimensions
from dnnmem_tune.frontends.onnx.settings import read_settings
from tests.onnx_models import Shape, make_model


def model_of(**inputs: Shape) -> Any:
    """Return a model with these inputs."""
    first = next(iter(inputs))
    return make_model([helper.make_node("Relu", [first], ["y"])], inputs, ["y"])


@pytest.mark.parametrize(
    ("inputs", "batch", "fixed"),
    [
        ({"x": ["batch", "sequence"]}, "batch", None),
        ({"state": [2, "N", 128], "x": ["N", 512]}, "N", None),
        ({"x": ["s0", 3]}, "s0", None),
        ({"x": [None, 3]}, "x.0", None),
        ({"x": [1, 3, 8, 8], "scale": [1]}, "batch", 1),
    ],
)
def test_the_batch_is_found(inputs: dict[str, Shape], batch: str, fixed: int | None) -> None:
    """By a usual name wherever it stands, else as the first axis of the first input."""
    dimensions = read_dimensions(model_of(**inputs))

    assert (dimensions.batch, dimensions.fixed_batch) == (batch, fixed)


def test_open_dimensions_without_a_name_are_called_after_their_place() -> None:
    """Zero, minus one and a question mark all stand for an open one, each for another."""
    dimensions = read_dimensions(model_of(x=["batch", "?", "?", None]))

    assert dimensions.names() == ["batch", "x.1", "x.2", "x.3"]


def test_a_vector_of_one_number_is_no_batch() -> None:
    """A sampling rate of shape (1,) stays as it is when the batch is opened."""
    shapes = read_dimensions(model_of(x=[1, 512], rate=[1])).bind(4, {})

    assert shapes == {"x": (4, 512), "rate": (1,)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "the model leaves sequence open; give each a value, such as --dim sequence=128"),
        (
            {"sequenc": 3},
            "'sequenc' is no dimension of the model; did you mean sequence? (it has batch, sequence)",
        ),
        ({"sequence": -1}, "dimension sequence must be a whole number of at least 1, got -1"),
        (
            {"sequence": 3, "batch": 8},
            "dimension batch is the batch: it is 8 by --dim and 2 as the batch size; give one, "
            "or name another batch dimension",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, int], message: str) -> None:
    """The message has the name, the value and what to write instead."""
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        read_dimensions(model_of(x=["batch", "sequence"])).bind(2, given)


def test_a_batch_dimension_must_be_open() -> None:
    """Else the message says which are."""
    with pytest.raises(UsageError, match=r"^'rows' is no open dimension of the model; it has batch, sequence$"):
        read_dimensions(model_of(x=["batch", "sequence"]), "rows")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"dims": {"s": 1}, "s": 2}, "dimension s is given twice: 1 and 2"),
        ({"precision": "int4"}, "precision of an ONNX model must be one of fp32, fp16, bf16, got 'int4'"),
        ({"memory_pattern": "yes"}, "memory_pattern must be True or False, got 'yes'"),
        ({"dims": 3}, "dims must map names to whole numbers, got 3"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(params: dict[str, Any], message: str) -> None:
    """Each by name, with what was received."""
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        read_settings(params)


def test_an_unknown_optimizer_is_refused_with_those_there_are() -> None:
    """The states of another one are not known."""
    with pytest.raises(
        UsageError, match=r"^there is no optimizer 'shampoo' for ONNX models; choose one of adadelta"
    ):
        read_settings({"optimizer": "shampoo"})
