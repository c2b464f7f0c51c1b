"""The types of one node's outputs, by its operator's schema and by what is known of its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.onnx.bounds import bounded_shape, copied_schema, largest_shape, unlisted_shape
from dnnmem_tune.frontends.onnx.flat import FlatModel, TensorType
from dnnmem_tune.frontends.onnx.reading import import_onnx
from dnnmem_tune.frontends.onnx.values import Array

STANDARD = ("", "ai.onnx")
"""Names of ONNX's own domain."""

_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2, "STRING": 128}
"""Types whose elements are no whole number of bytes, and strings, which live on the host."""

_FLOATS = frozenset({"FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16"})


def tensor_type(element: int, shape: tuple[int, ...]) -> TensorType:
    """Return a type.

    Raises:
        WorkloadError: If there is no such element.

    """
    onnx = import_onnx()
    try:
        name = onnx.TensorProto.DataType.Name(element)
        bits = _BITS.get(name) or 8 * int(onnx.helper.tensor_dtype_to_np_dtype(element).itemsize)
    except (ValueError, KeyError) as error:
        raise WorkloadError(f"the model has tensors of type number {element}, which onnx does not know") from error
    return TensorType(element, shape, bits, name in _FLOATS)


def qualified(node: Any) -> str:
    """Return the operator's name, with its domain where that is not ONNX's own."""
    name = str(node.op_type)
    return name if node.domain in STANDARD else f"{node.domain}.{name}"


class NodeTypes:
    """Infers one node after the other.

    Args:
        flat: What is known so far; bounded and unknown outputs are counted there.
        values: Name of a value -> its elements, where they were evaluated.
        fixed: Names of weights and of what is made of them alone.
        inexact: Names of values whose shape is a bound; more are added.
        batch: The batch size asked for, and the one that the file was exported for where that is another.
        hints: Name of a value -> its shape, for operators whose own inference says nothing.
        ir_version: Of the model.

    """

    def __init__(
        self,
        flat: FlatModel,
        *,
        values: Mapping[str, Array],
        fixed: set[str],
        inexact: set[str],
        batch: tuple[int, int | None],
        hints: Mapping[str, tuple[int, ...]],
        ir_version: int,
    ) -> None:
        self._onnx = import_onnx()
        self._flat = flat
        self._values = values
        self._fixed = fixed
        self._inexact = inexact
        self._batch, self._exported_batch = batch
        self._hints = hints
        self._ir_version = ir_version

    def infer(
        self,
        node: Any,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        attributes: Mapping[str, Any],
        opsets: dict[str, int],
        name: str,
    ) -> dict[str, TensorType]:
        """Return the type of each output; where it depends on data, the largest it can be."""
        inexact = any(given in self._inexact for given in inputs)
        found = self._by_schema(node, inputs, opsets, name, inexact)
        given = [self._flat.types[value] if value else None for value in inputs]
        values = [self._values.get(value) for value in inputs]
        types: dict[str, TensorType] = {}
        for index, (local, output) in enumerate(zip(node.output, outputs, strict=True)):
            if not output:
                continue
            proto = found.get(local)
            element, shape = self._partial(proto)
            if element is None:
                element = next((tensor.element for tensor in given if tensor), self._onnx.TensorProto.FLOAT)
            if shape is None or None in shape:
                known = unlisted_shape(node.op_type, given, attributes, index) or self._hints.get(output)
                bound = bounded_shape(node.op_type, given, values, attributes, shape) if known is None else None
                if known is None:
                    self._inexact.add(output)
                    (self._flat.unknown if bound is None else self._flat.bounded)[qualified(node)] += 1
                shape = known or bound or largest_shape(given, shape)
            elif inexact:
                self._inexact.add(output)
            types[output] = tensor_type(element, tuple(int(extent or 0) for extent in shape))
        return types

    def _by_schema(
        self, node: Any, inputs: tuple[str, ...], opsets: dict[str, int], name: str, inexact: bool
    ) -> dict[str, Any]:
        onnx = self._onnx
        node, domain = copied_schema(onnx, node)
        try:
            schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, onnx.defs.onnx_opset_version()), domain)
        except onnx.defs.SchemaError:
            if node.domain in STANDARD:
                raise WorkloadError(
                    f"node {name!r} calls {node.op_type}, which is no operator of the model's opset"
                ) from None
            return {}
        types = {
            local: self._proto(self._flat.types[known])
            for local, known in zip(node.input, inputs, strict=True)
            if local
        }
        data = self._data(node, inputs)
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                types,
                data,
                opset_imports=[onnx.helper.make_opsetid(key, version) for key, version in opsets.items()],
                ir_version=self._ir_version,
            )
        except (
            onnx.shape_inference.InferenceError,
            onnx.checker.ValidationError,
            RuntimeError,
            ValueError,
        ) as error:
            if inexact:
                return {}  # a bound need not divide or broadcast as the real extent does
            raise WorkloadError(f"node {name!r} cannot take what it gets: {_first_line(error)}") from error
        return dict(found)

    def _data(self, node: Any, inputs: tuple[str, ...]) -> dict[str, Any]:
        """Return the values that decide the shape of the output, as tensors."""
        data = {}
        for local, known in zip(node.input, inputs, strict=True):
            value = self._values.get(known)
            if not local or value is None or value.dtype.kind not in "iufb":
                continue
            if node.op_type == "Reshape" and local == node.input[1] and inputs[0] not in self._fixed:
                value = self._with_batch(value, self._flat.types[inputs[0]])
            data[local] = self._onnx.numpy_helper.from_array(np.ascontiguousarray(value), name=local)
        return data

    def _with_batch(self, target: Array, tensor: TensorType) -> Array:
        """Return a reshape's target for the batch asked for, where the file's own is written into it."""
        extents = [int(extent) for extent in target]
        exported = self._exported_batch
        if exported is None or exported == self._batch or not extents or extents[0] != exported:
            return target
        changed = [self._batch, *extents[1:]]
        rest = math.prod(extent for extent in changed if extent > 0)
        fits = tensor.num_elements % rest == 0 if -1 in changed or 0 in changed else tensor.num_elements == rest
        return np.array(changed, dtype=target.dtype) if fits else target

    def _proto(self, tensor: TensorType) -> Any:
        return self._onnx.helper.make_tensor_type_proto(tensor.element, tensor.shape)

    def _partial(self, proto: Any) -> tuple[int | None, tuple[int | None, ...] | None]:
        """Return what inference said of an output: its element, and its axes as far as they are known."""
        if proto is None or not proto.HasField("tensor_type"):
            return None, None
        tensor = proto.tensor_type
        element = tensor.elem_type or None
        if not tensor.HasField("shape"):
            return element, None
        return element, tuple(
            int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else None
            for dim in tensor.shape.dim
        )


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
