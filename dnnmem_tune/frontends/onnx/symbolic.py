"""Shapes from ONNX Runtime's symbolic inference, for operators that neither ``onnx`` nor this package knows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dnnmem_tune.frontends.onnx.reading import import_onnx

_MOST_BYTES = 512 << 20
"""A model with more inside the file is not copied for this."""


_LARGEST = (1 << 31) - 1
"""What an open end of a slice stands for there."""


def symbolic_shapes(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of values that symbolic inference finds; none where its packages are not installed.

    Args:
        model: A ``ModelProto``; it is not changed.
        shapes: Name of an input -> its shape.

    Source:
        ``onnxruntime/python/tools/symbolic_shape_infer.py``, which knows ONNX Runtime's own operators.

    """
    try:
        from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference
    except ImportError:
        return {}
    if model.ByteSize() > _MOST_BYTES:
        return {}
    concrete = import_onnx().ModelProto()
    concrete.CopyFrom(model)
    for value in concrete.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, extent in zip(dims, shapes.get(value.name, ()), strict=False):
            dim.dim_value = extent
    del concrete.graph.value_info[:]
    logger = logging.getLogger("onnxruntime.tools.symbolic_shape_infer")
    before, logger.disabled = logger.disabled, True
    try:
        # Step by step as its ``infer_shapes`` does, which writes a file into the working directory where it fails.
        inference = SymbolicShapeInference(_LARGEST, True, 0, 0)
        inference._preprocess(concrete)
        while inference.run_:
            inference._infer_impl()
        inference._update_output_from_vi()
        inferred = inference.out_mp_
    except Exception:
        # It ends in assertions, missing keys and its own errors on graphs that it does not know; what it
        # would have said stays unknown, and is counted so.
        return {}
    finally:
        logger.disabled = before
    return {
        value.name: tuple(int(dim.dim_value) for dim in value.type.tensor_type.shape.dim)
        for value in (*inferred.graph.value_info, *inferred.graph.output)
        if value.type.HasField("tensor_type")
        and value.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
