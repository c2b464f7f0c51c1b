"""From a model to a flat list of nodes: each node's type inferred in turn, bodies and functions walked.

Every dimension of the inputs has a number here. Each node's output types are inferred from its
input types by the operator's own schema, and shape arithmetic is evaluated (``values``). What depends
on data is bounded, so that everything after it has a size too. Symbols, and their algebra, are never needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.onnx.flat import FlatModel, Node, TensorType
from dnnmem_tune.frontends.onnx.node_types import STANDARD, NodeTypes, qualified, tensor_type
from dnnmem_tune.frontends.onnx.ordering import ordered
from dnnmem_tune.frontends.onnx.reading import import_onnx
from dnnmem_tune.frontends.onnx.values import MAX_ELEMENTS, Array, evaluate

_NOT_FOLDED = frozenset(
    {
        "RandomNormal",
        "RandomUniform",
        "RandomNormalLike",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "Dropout",
    }
    | {"DequantizeLinear"}
)
"""Operators that run even where all their inputs are constants.

ONNX Runtime keeps ``DequantizeLinear``, so that weights stay quantised (``constant_folding.cc``).
"""

_MOST_NODES = 200_000
"""Nodes after expansion; functions that call functions can ask for more than any memory holds."""


class Flattener:
    """Walks one model at one set of dimensions.

    Args:
        model: A ``ModelProto``; it is not changed.
        shapes: Name of an input -> its shape.
        batch: The batch size asked for, and the one that the file was exported for where that is another.
        trip_counts: Name of a ``Loop`` node -> how often it runs, where the file does not say.
        hints: Name of a value of the outermost graph -> its shape, as found in another way; used where the
            operator's own inference says nothing.

    """

    def __init__(
        self,
        model: Any,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        batch: tuple[int, int | None] = (1, None),
        trip_counts: Mapping[str, int] | None = None,
        hints: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._onnx = import_onnx()
        self._model = model
        self._shapes = shapes
        self._trip_counts = dict(trip_counts or {})
        self._functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions}
        self._values: dict[str, Array] = {}
        self._fixed: set[str] = set()
        self._inexact: set[str] = set()
        self._depth = 0
        self._flat = FlatModel()
        self._node_types = NodeTypes(
            self._flat,
            values=self._values,
            fixed=self._fixed,
            inexact=self._inexact,
            batch=batch,
            hints=hints or {},
            ir_version=model.ir_version,
        )

    def flatten(self) -> FlatModel:
        """Return the nodes that run, with the type of every value.

        Raises:
            WorkloadError: If the graph is no graph, or a node cannot take what it gets.

        """
        graph, flat = self._model.graph, self._flat
        scope: dict[str, str] = {"": ""}
        self._read_initializers(graph, scope, "")
        for value in graph.input:
            if value.name not in scope:
                self._read_input(value, scope)
        opsets = {entry.domain: entry.version for entry in self._model.opset_import}
        self._walk(ordered(graph.node, scope, "the graph"), scope, opsets, "", 1)
        for value in graph.output:
            if value.name not in scope:
                raise WorkloadError(f"output {value.name!r} of the model is made by no node")
            flat.outputs.append(scope[value.name])
        read = {name for node in flat.nodes for name in node.inputs} | set(flat.outputs)
        flat.weights = [name for name in flat.types if name in self._fixed and name in read]
        return flat

    def _read_initializers(self, graph: Any, scope: dict[str, str], prefix: str) -> None:
        for tensor in graph.initializer:
            name = prefix + tensor.name
            if any(extent < 0 for extent in tensor.dims):
                raise WorkloadError(
                    f"weight {name!r} has the shape {list(tensor.dims)}; no extent can be negative"
                )
            self._declare(name, tensor.data_type, tuple(tensor.dims))
            self._fixed.add(name)
            scope[tensor.name] = name
            if math.prod(tensor.dims) <= MAX_ELEMENTS:
                self._read_value(name, tensor)
        for sparse in graph.sparse_initializer:
            name = prefix + sparse.values.name
            self._declare(name, sparse.values.data_type, tuple(sparse.dims))
            self._fixed.add(name)
            scope[sparse.values.name] = name

    def _read_value(self, name: str, tensor: Any) -> None:
        if tensor.data_location == self._onnx.TensorProto.EXTERNAL:
            return
        self._values[name] = self._array(tensor, name)

    def _array(self, tensor: Any, name: str) -> Array:
        """Return the elements of a small tensor.

        Raises:
            WorkloadError: If it has not as many as its shape says, or they are of a type that does not exist.

        """
        try:
            return np.asarray(self._onnx.numpy_helper.to_array(tensor))
        except (ValueError, TypeError, KeyError) as error:
            raise WorkloadError(
                f"the constant {name!r} has the shape {list(tensor.dims)} but not that many values"
            ) from error

    def _read_input(self, value: Any, scope: dict[str, str]) -> None:
        if not value.type.HasField("tensor_type"):
            self._declare(value.name, self._onnx.TensorProto.UINT8, (0,))
            self._inexact.add(value.name)
            self._flat.unknown["input that is no tensor"] += 1
        else:
            self._declare(value.name, value.type.tensor_type.elem_type, self._shapes[value.name])
        scope[value.name] = value.name
        self._flat.inputs.append(value.name)

    def _declare(self, name: str, element: int, shape: tuple[int, ...]) -> TensorType:
        self._flat.types[name] = declared = tensor_type(element, shape)
        return declared

    def _walk(
        self, nodes: Sequence[Any], scope: dict[str, str], opsets: dict[str, int], prefix: str, times: int
    ) -> None:
        for index, node in enumerate(nodes):
            name = prefix + (node.name or f"{node.op_type}_{index}")
            missing = [given for given in node.input if given not in scope]
            if missing:
                raise WorkloadError(f"node {name!r} ({node.op_type}) reads {missing[0]!r}, which nothing makes")
            function = self._functions.get((node.domain, node.op_type, getattr(node, "overload", "")))
            if function is not None:
                self._call(function, node, scope, name, times)
            elif node.domain in STANDARD and node.op_type in ("If", "Loop", "Scan"):
                walk = {"If": self._if, "Loop": self._loop, "Scan": self._scan}[node.op_type]
                walk(node, scope, opsets, name, times)
            else:
                self._visit(node, scope, opsets, name, prefix, times)

    # Control flow and functions

    def _call(self, function: Any, node: Any, scope: dict[str, str], name: str, times: int) -> None:
        """Expand a call of a local function."""
        self._enter(name)
        inner = {"": ""}
        given = [scope[argument] for argument in node.input]
        inner.update(zip(function.input, [*given, *[""] * (len(function.input) - len(given))], strict=True))
        attributes = {attribute.name: attribute for attribute in function.attribute_proto}
        attributes.update({attribute.name: attribute for attribute in node.attribute})
        opsets = {entry.domain: entry.version for entry in function.opset_import}
        nodes = [self._with_attributes(child, attributes) for child in ordered(function.node, inner, name)]
        self._walk(nodes, inner, opsets, f"{name}/", times)
        for result, inside in zip(node.output, function.output, strict=False):
            scope[result] = inner[inside]
        self._depth -= 1

    def _with_attributes(self, node: Any, attributes: Mapping[str, Any]) -> Any:
        """Return a function's node with the attributes of the call in place of references to them."""
        if not any(attribute.ref_attr_name for attribute in node.attribute):
            return node
        copy = self._onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.attribute[:]
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                copy.attribute.add().CopyFrom(attribute)
            elif attribute.ref_attr_name in attributes:
                added = copy.attribute.add()
                added.CopyFrom(attributes[attribute.ref_attr_name])
                added.name = attribute.name
        return copy

    def _body(
        self, graph: Any, scope: dict[str, str], opsets: dict[str, int], prefix: str, times: int
    ) -> list[str]:
        """Walk a body, whose inputs are in ``scope`` already; return the names of its outputs."""
        self._enter(prefix)
        inner = dict(scope)
        self._read_initializers(graph, inner, prefix)
        self._walk(ordered(graph.node, inner, prefix), inner, opsets, prefix, times)
        self._depth -= 1
        return [inner[value.name] for value in graph.output]

    def _if(self, node: Any, scope: dict[str, str], opsets: dict[str, int], name: str, times: int) -> None:
        """Walk the branch that is taken; where that is not known, the one that makes more bytes."""
        branches = {attribute.name: attribute.g for attribute in node.attribute}
        condition = self._values.get(scope[node.input[0]])
        if condition is not None:
            taken = "then_branch" if condition.any() else "else_branch"
            results = self._body(branches[taken], scope, opsets, f"{name}/", times)
        else:
            outcomes = []
            for branch in ("then_branch", "else_branch"):
                start = len(self._flat.nodes)
                results = self._body(branches[branch], scope, opsets, f"{name}/{branch}/", times)
                nodes = self._flat.nodes[start:]
                del self._flat.nodes[start:]
                made = {output for child in nodes for output in child.outputs} | set(results)
                outcomes.append(
                    (sum(self._flat.types[output].nbytes for output in made if output), nodes, results)
                )
            _, nodes, results = max(outcomes, key=lambda outcome: outcome[0])
            self._flat.nodes.extend(nodes)
            self._inexact.update(results)
            if outcomes[0][0] != outcomes[1][0]:
                self._flat.bounded["If"] += 1
        scope.update(zip(node.output, results, strict=False))

    def _loop(self, node: Any, scope: dict[str, str], opsets: dict[str, int], name: str, times: int) -> None:
        body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
        trips = self._trip_count(node, scope, name)
        inner = dict(scope)
        carried = [scope[given] for given in node.input[2:]]
        for value in body.input[:2]:
            inner[value.name] = f"{name}/{value.name}"
        self._declare(inner[body.input[0].name], self._onnx.TensorProto.INT64, ())
        self._declare(inner[body.input[1].name], self._onnx.TensorProto.BOOL, ())
        self._flat.on_host.update(inner[value.name] for value in body.input[:2])
        for value, given in zip(body.input[2:], carried, strict=False):
            inner[value.name] = self._carry(given, f"{name}/{value.name}")
        results = self._body(body, inner, opsets, f"{name}/", times * max(1, trips))[1:]
        self._stack(results[len(carried) :], node.output[len(carried) :], scope, name, trips, times)
        scope.update(zip(node.output, results[: len(carried)], strict=False))

    def _scan(self, node: Any, scope: dict[str, str], opsets: dict[str, int], name: str, times: int) -> None:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        body, num_scanned = attributes["body"].g, attributes["num_scan_inputs"].i
        num_carried = len(node.input) - num_scanned
        inner = dict(scope)
        trips = 1
        for index, (value, given) in enumerate(zip(body.input, node.input, strict=False)):
            outer = self._flat.types[scope[given]]
            inner[value.name] = f"{name}/{value.name}"
            if index < num_carried:
                inner[value.name] = self._carry(scope[given], inner[value.name])
            else:
                trips = outer.shape[0] if outer.shape else 1
                self._declare(inner[value.name], outer.element, outer.shape[1:])
        results = self._body(body, inner, opsets, f"{name}/", times * max(1, trips))
        self._stack(results[num_carried:], node.output[num_carried:], scope, name, trips, times)
        scope.update(zip(node.output, results[:num_carried], strict=False))

    def _carry(self, given: str, name: str) -> str:
        """Return a body's own name for what a loop carries: its value changes, so that it is not evaluated."""
        outer = self._flat.types[given]
        self._declare(name, outer.element, outer.shape)
        node = Node("Identity", name, (given,), (name,), {})
        if given in self._flat.on_host and outer.num_elements <= MAX_ELEMENTS:
            self._flat.on_host.add(name)
        else:
            self._flat.nodes.append(node)
        return name

    def _stack(
        self,
        slices: Sequence[str],
        outputs: Sequence[str],
        scope: dict[str, str],
        name: str,
        trips: int,
        times: int,
    ) -> None:
        """Collect what every iteration gives into one tensor."""
        for inside, output in zip(slices, outputs, strict=False):
            one = self._flat.types[inside]
            stacked = f"{name}/{output}"
            self._declare(stacked, one.element, (trips, *one.shape))
            self._flat.nodes.append(Node("LoopStack", f"{name}/{output}", (inside,), (stacked,), {}, times))
            scope[output] = stacked

    def _trip_count(self, node: Any, scope: dict[str, str], name: str) -> int:
        limit = self._values.get(scope[node.input[0]]) if node.input and node.input[0] else None
        if name in self._trip_counts or node.name in self._trip_counts:
            return self._trip_counts.get(name, self._trip_counts.get(node.name, 1))
        if limit is not None and limit.size == 1 and 0 <= int(limit.ravel()[0]) < 1 << 31:
            return int(limit.ravel()[0])
        self._flat.unknown["Loop"] += 1
        self._flat.notes.append(f"How often the loop {name} runs is not in the file; once was taken.")
        return 1

    def _enter(self, name: str) -> None:
        self._depth += 1
        if self._depth > 64:
            raise WorkloadError(
                f"functions or bodies are nested more than 64 deep at {name!r}: they call themselves"
            )

    # One node

    def _visit(
        self, node: Any, scope: dict[str, str], opsets: dict[str, int], name: str, prefix: str, times: int
    ) -> None:
        if len(self._flat.nodes) >= _MOST_NODES:
            raise WorkloadError(f"the model has more than {_MOST_NODES} nodes once its functions are expanded")
        inputs = tuple(scope[given] for given in node.input)
        outputs = tuple(prefix + output if output else "" for output in node.output)
        attributes = self._attributes(node)
        scope.update((output, known) for output, known in zip(node.output, outputs, strict=True) if output)
        if node.op_type == "Constant" and node.domain in STANDARD:
            self._constant(node, outputs[0])
            return
        computed = self._evaluated(node, inputs, attributes, len(outputs))
        if computed is not None:
            for output, array in zip(outputs, computed, strict=False):
                self._keep_value(output, array)
            if all(given in self._fixed for given in inputs if given) and inputs:
                self._fixed.update(outputs)
            return
        for output, tensor in self._node_types.infer(node, inputs, outputs, attributes, opsets, name).items():
            self._flat.types[output] = tensor
        if inputs and node.op_type not in _NOT_FOLDED and all(given in self._fixed for given in inputs if given):
            self._fixed.update(output for output in outputs if output)
            return
        self._flat.nodes.append(Node(qualified(node), name, inputs, outputs, attributes, times))

    def _evaluated(
        self, node: Any, inputs: Sequence[str], attributes: Mapping[str, Any], num_outputs: int
    ) -> list[Array] | None:
        if node.domain not in STANDARD:
            return None
        if node.op_type in ("Shape", "Size"):
            shape = self._flat.types[inputs[0]].shape
            if node.op_type == "Size":
                return [np.array(math.prod(shape), dtype=np.int64)]
            return [np.array(shape[attributes.get("start", 0) : attributes.get("end")], dtype=np.int64)]
        if any(given and given not in self._values for given in inputs) or not inputs:
            return None
        arguments = [self._values[given] if given else None for given in inputs]
        if node.op_type == "Cast":
            attributes = {"to": self._onnx.helper.tensor_dtype_to_np_dtype(attributes["to"])}
        elif node.op_type == "Split":
            attributes = {"num_outputs": num_outputs, **attributes}
        return evaluate(node.op_type, arguments, attributes)

    def _keep_value(self, name: str, array: Array) -> None:
        if not name:
            return
        self._declare(name, self._onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        self._values[name] = array
        self._flat.on_host.add(name)

    def _constant(self, node: Any, output: str) -> None:
        attribute = node.attribute[0]
        if attribute.name == "value":
            self._declare(output, attribute.t.data_type, tuple(attribute.t.dims))
            self._fixed.add(output)
            if math.prod(attribute.t.dims) <= MAX_ELEMENTS:
                self._read_value(output, attribute.t)
        elif attribute.name == "sparse_value":
            self._declare(output, attribute.sparse_tensor.values.data_type, tuple(attribute.sparse_tensor.dims))
            self._fixed.add(output)
        else:
            value = self._onnx.helper.get_attribute_value(attribute)
            is_float = attribute.name in ("value_float", "value_floats")
            if attribute.name in ("value_string", "value_strings"):
                self._declare(output, self._onnx.TensorProto.STRING, ())
            else:
                self._keep_value(output, np.array(value, dtype=np.float32 if is_float else np.int64))
            self._fixed.add(output)

    def _attributes(self, node: Any) -> dict[str, Any]:
        kinds = self._onnx.AttributeProto
        plain = (kinds.FLOAT, kinds.INT, kinds.STRING, kinds.FLOATS, kinds.INTS, kinds.STRINGS)
        attributes = {}
        for attribute in node.attribute:
            if attribute.type in plain:
                value = self._onnx.helper.get_attribute_value(attribute)
                attributes[attribute.name] = value.decode(errors="replace") if isinstance(value, bytes) else value
            elif attribute.type == kinds.TENSOR and math.prod(attribute.t.dims) <= MAX_ELEMENTS:
                attributes[attribute.name] = self._array(attribute.t, f"{node.name}.{attribute.name}")
        return attributes
