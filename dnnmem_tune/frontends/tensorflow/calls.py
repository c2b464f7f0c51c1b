"""Operators that run another function: calls, branches and loops.

A call runs its function once. Of a branch the larger side is taken. Of a loop one iteration is
taken, since the next one reuses its memory; what an iteration appends to a list stays, and is
counted as many times as the loop runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient", "RemoteCall"})
BRANCHES = frozenset({"Case", "If", "StatelessCase", "StatelessIf"})
LOOPS = frozenset({"StatelessWhile", "While"})

PUSHES = {"TensorListPushBack": 1, "TensorListSetItem": 2}
"""Kind -> the input that is kept in the list."""


@dataclass(frozen=True, slots=True)
class Body:
    """The function behind one operator."""

    graph: Any
    """Its ``FuncGraph``; inputs and outputs are those of the operator, as ``arguments`` has them."""

    arguments: tuple[int, ...]
    """For each input of the graph, the input of the operator that it stands for."""

    num_runs: int | None
    """How often it runs in one execution of the operator; None where that is not known."""


class Library:
    """The functions that a graph may call.

    Args:
        graph: The graph.

    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._definitions = {entry.signature.name: entry for entry in graph.as_graph_def().library.function}

    def body_of(self, operation: Any) -> Body | None:
        """Return what an operator runs; None where it calls no function, or one that cannot be read."""
        kind = operation.type
        if kind in CALLS:
            return self._body(operation, operation.get_attr("f").name, range(len(operation.inputs)), 1)
        if kind in LOOPS:
            num_runs = self._trip_count(operation)
            return self._body(operation, operation.get_attr("body").name, range(len(operation.inputs)), num_runs)
        if kind in BRANCHES:
            names = (
                [branch.name for branch in operation.get_attr("branches")]
                if kind.endswith("Case")
                else [operation.get_attr("then_branch").name, operation.get_attr("else_branch").name]
            )
            arguments = range(1, len(operation.inputs))
            bodies = [self._body(operation, name, arguments, 1) for name in names]
            found = [body for body in bodies if body is not None]
            return max(found, key=lambda body: _total_bytes(body.graph)) if found else None
        return None

    def _body(self, operation: Any, name: str, arguments: range, num_runs: int | None) -> Body | None:
        if name not in self._definitions:
            return None
        shapes = [operation.inputs[index].shape for index in arguments]
        with self._graph.as_default():
            graph = function_def_to_graph(self._definitions[name], input_shapes=shapes)
        return Body(graph, tuple(arguments), num_runs)

    def _trip_count(self, operation: Any) -> int | None:
        """Return the constant that the loop's condition compares its counter with.

        Keras and TensorFlow bound their loops by ``maximum_iterations``, which becomes one of the
        loop's inputs or a constant of the condition.
        """
        condition = self._body(operation, operation.get_attr("cond").name, range(len(operation.inputs)), 1)
        if condition is None:
            return None
        bounds = []
        for inner in condition.graph.get_operations():
            if inner.type != "Less":
                continue
            limit = inner.inputs[1]
            if limit.op.type == "Placeholder":
                position = [given.op.name for given in condition.graph.inputs].index(limit.op.name)
                limit = operation.inputs[position]
            value = tf.get_static_value(limit)
            if value is not None and value.ndim == 0:
                bounds.append(int(value))
        return min((bound for bound in bounds if bound > 0), default=None)


def _total_bytes(graph: Any) -> int:
    """Return the bytes of everything that a graph computes; what tells a branch with work from one without."""
    return sum(
        (output.shape.num_elements() or 0) * output.dtype.size
        for operation in graph.get_operations()
        for output in operation.outputs
        if output.dtype not in (tf.resource, tf.variant, tf.string) and output.shape.rank is not None
    )
