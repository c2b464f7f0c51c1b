"""From TensorFlow's graph of a step to the framework-neutral one."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import tensorflow as tf

from dnnmem_tune.errors import UnsupportedError
from dnnmem_tune.frontends.tensorflow import operators
from dnnmem_tune.frontends.tensorflow.calls import LOOPS, PUSHES, Body, Library
from dnnmem_tune.frontends.tensorflow.names import Naming
from dnnmem_tune.frontends.tensorflow.recurrent import reserve_bytes
from dnnmem_tune.frontends.tensorflow.step import TracedStep
from dnnmem_tune.frontends.tensorflow.temporaries import temporaries
from dnnmem_tune.ir.graph import Graph, GraphOperation, Tensor
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category, Coverage, Phase

_WITHOUT_BYTES = (tf.resource, tf.variant, tf.string)

_DEVICE_SCRATCH_BYTES = 1028
"""``BaseGPUDevice`` takes one scratch buffer per stream. Seen in the allocator's log of TensorFlow 2.21."""


def lower_graph(graph: tf.Graph, step: TracedStep, *, batch_size: int, recorder: str) -> Graph:
    """Return the step as tensors and operators.

    The batch belongs to the caller and stays during the step; constants belong to their kernels.

    Args:
        graph: What the executor runs, with shapes.
        step: The traced step that it comes from.
        batch_size: At which it was traced.
        recorder: How the graph was obtained.

    """
    return _Lowering(graph, step).lower(batch_size, recorder)


class _Lowering:
    def __init__(self, graph: tf.Graph, step: TracedStep) -> None:
        self._step = step
        self._library = Library(graph)
        self._names = Naming(step.optimizer_scope)
        self._tensors: list[Tensor] = []
        self._lowered: list[GraphOperation] = []
        self._unknown: Counter[str] = Counter()
        self._notes = list(step.notes)
        self._outer = _Frame(graph, prefix="", num_runs=1)

    def lower(self, batch_size: int, recorder: str) -> Graph:
        self._add("device scratch", _DEVICE_SCRATCH_BYTES, Category.WORKSPACE, resident=True)
        for variable in self._step.variables:
            module, _, name = variable.name.rpartition("/")
            draws = (Polynomial(variable.nbytes),) * variable.num_draws
            self._add(name, variable.nbytes, variable.category, resident=True, module=module, made_with=draws)
        frame = self._outer
        self._lower_all(frame)
        names = {output.op.name for output in self._step.function.graph.outputs}
        results = tuple(
            number
            for (name, _index), number in frame.number.items()
            if name in names and not self._tensors[number].resident
        )
        return Graph(
            tensors=tuple(self._tensors),
            operations=tuple(self._lowered),
            results=results,
            framework=f"tensorflow {tf.__version__}",
            recorder=recorder,
            batch_size=batch_size,
            coverage=Coverage(unknown_operators=dict(self._unknown), notes=tuple(dict.fromkeys(self._notes))),
        )

    def _lower_all(self, frame: _Frame) -> None:
        """Lower the operators of a graph; those they need come first, whatever the order of the list."""
        for operation in frame.operations:
            body = self._library.body_of(operation)
            if body is None:
                self._lower(operation, frame)
            else:
                self._lower_call(operation, body, frame)

    def _lower_call(self, operation: Any, body: Body, frame: _Frame) -> None:
        """Put the operators of a function in the place of the one that calls it."""
        num_runs = body.num_runs
        if num_runs is None:
            self._unknown[operation.type] += 1
            num_runs = 1
        elif operation.type in LOOPS:
            self._notes.append(
                f"The loop {operation.name} is counted by one iteration of {num_runs}, "
                "and by all that it appends to lists."
            )
        inner = _Frame(body.graph, f"{frame.prefix}{operation.name}/", frame.num_runs * num_runs)
        for given, position in zip(body.graph.inputs, body.arguments, strict=False):
            outer = operation.inputs[position]
            inner.number[given.op.name, 0] = frame.number[outer.op.name, outer.value_index]
        first = len(self._lowered)
        inner.after = self._control(operation, frame)
        self._lower_all(inner)
        for index, output in enumerate(body.graph.outputs[: len(operation.outputs)]):
            frame.number[operation.name, index] = inner.number[output.op.name, output.value_index]
        frame.places[operation.name] = tuple(range(first, len(self._lowered)))[-1:]

    def _control(self, operation: Any, frame: _Frame) -> tuple[int, ...]:
        """Return the operators that must have run, besides those that write the inputs."""
        return (
            *frame.after,
            *(place for other in operation.control_inputs for place in frame.places.get(other.name, ())),
        )

    def _lower(self, operation: Any, frame: _Frame) -> None:
        if (operation.name, 0) in frame.number:
            return  # an argument, which is the caller's tensor
        name = frame.prefix + operation.name
        phase = self._names.phase(name)
        inputs = tuple(frame.number[given.op.name, given.value_index] for given in operation.inputs)
        outputs = tuple(
            self._output(operation, index, inputs, phase, frame) for index in range(len(operation.outputs))
        )
        is_resident = [self._tensors[index].resident for index in outputs]
        frame.places[operation.name] = (len(self._lowered),)
        self._lowered.append(
            GraphOperation(
                kind=operation.type,
                name=name,
                module=self._names.module(name),
                phase=phase,
                inputs=inputs,
                outputs=() if any(is_resident) else outputs,
                after=self._control(operation, frame),
                forwards=tuple(
                    (output, given)
                    for output, given in operators.forwards(operation.type, len(inputs))
                    if operation.inputs[given].dtype == operation.outputs[output].dtype
                ),
                workspaces=temporaries(operation),
            )
        )

    def _output(self, operation: Any, index: int, inputs: tuple[int, ...], phase: Phase, frame: _Frame) -> int:
        alias = None
        if operation.type in operators.ALIASES and inputs:
            alias = inputs[min(index, len(inputs) - 1)]
        output = operation.outputs[index]
        number = self._add(
            frame.prefix + operation.name,
            self._bytes_of(operation, output, frame) if alias is None else 0,
            self._category(operation, index, phase, frame),
            resident=operation.type in ("Const", "Placeholder"),
            alias_of=alias,
        )
        frame.number[operation.name, index] = number
        return number

    def _bytes_of(self, operation: Any, output: Any, frame: _Frame) -> int:
        kind = operation.type
        if kind in PUSHES:
            kept = operation.inputs[PUSHES[kind]]
            return frame.num_runs * (kept.shape.num_elements() or 0) * int(kept.dtype.size)
        if output.dtype in _WITHOUT_BYTES or kind in operators.HOST_OUTPUTS:
            return 0
        if kind == "ReadVariableOp" and operation.inputs[0].op.name not in frame.copied_on_read:
            return 0
        if kind == "Const" and output.dtype == tf.int32:
            return 0  # HostConstantOp
        elements = output.shape.num_elements()
        if elements is None:
            if kind.startswith("CudnnRNN"):
                return reserve_bytes(operation, output.value_index)
            self._unknown[kind] += 1
            return 0
        return int(elements) * int(output.dtype.size)

    def _category(self, operation: Any, index: int, phase: Phase, frame: _Frame) -> Category:
        if operation.type == "Placeholder":
            return Category.INPUT
        if operation.type == "Const":
            return Category.BUFFER
        match phase:
            case Phase.OPTIMIZER:
                return Category.TEMPORARY
            case Phase.BACKWARD:
                readers = frame.readers[operation.name, index]
                is_read = any(self._names.phase(frame.prefix + name) is Phase.OPTIMIZER for name in readers)
                return Category.WEIGHT_GRADIENT if is_read else Category.OUTPUT_GRADIENT
            case _:
                return Category.ACTIVATION

    def _add(
        self,
        name: str,
        nbytes: int,
        category: Category,
        *,
        resident: bool = False,
        module: str = "",
        made_with: tuple[Polynomial, ...] = (),
        alias_of: int | None = None,
    ) -> int:
        self._tensors.append(
            Tensor(
                name=name,
                size=Polynomial(nbytes),
                category=category,
                resident=resident,
                module=module,
                made_with=made_with,
                alias_of=alias_of,
            )
        )
        return len(self._tensors) - 1


class _Frame:
    """One graph that is being lowered: the step itself, or a function that it calls.

    Args:
        graph: The graph.
        prefix: Put before its operators' names.
        num_runs: How often it runs in one step.

    """

    def __init__(self, graph: Any, prefix: str, num_runs: int) -> None:
        self.prefix = prefix
        self.num_runs = num_runs
        self.operations = _in_order(graph)
        self.number: dict[tuple[str, int], int] = {}
        """Name of an operator and position of its output -> tensor."""
        self.places: dict[str, tuple[int, ...]] = {}
        """Name of an operator -> what was made of it, as far as others have to wait for it."""
        self.after: tuple[int, ...] = ()
        """What must have run before any of its operators."""
        self.readers: dict[tuple[str, int], list[str]] = defaultdict(list)
        """Output of an operator -> names of those that read it."""
        users: dict[str, set[str]] = defaultdict(set)
        for operation in self.operations:
            for given in operation.inputs:
                self.readers[given.op.name, given.value_index].append(operation.name)
                if given.dtype == tf.resource:
                    users[given.op.name].add(operation.type)
        self.copied_on_read = {name for name, kinds in users.items() if operators.copies_on_read(kinds)}


def _in_order(graph: tf.Graph) -> list[Any]:
    """Return the operators in the order in which they start where several are ready at once.

    The graph lists the data gradient of a layer first. In the GPU build of TensorFlow 2.21 the
    executor meets the weight gradient first in 58 of 67 such pairs of VGG16 and ResNet50; which
    ones not depends on the inner order of Grappler's edge lists.
    """
    listed = list(graph.get_operations())
    place = {operation.name: number for number, operation in enumerate(listed)}
    for operation in list(listed):
        data_gradient = _data_gradient_beside(operation, place, listed)
        if data_gradient is not None and place[data_gradient.name] < place[operation.name]:
            first, second = place[data_gradient.name], place[operation.name]
            listed[first], listed[second] = operation, data_gradient
            place[operation.name], place[data_gradient.name] = first, second
    return _needed_first(listed)


def _needed_first(listed: list[Any]) -> list[Any]:
    """Return the operators with each after those it needs, and otherwise as listed."""
    ordered: dict[str, Any] = {}
    longest = sum(len(operation.inputs) + len(operation.control_inputs) + 1 for operation in listed)
    for start in listed:
        pending = [start]
        while pending:
            if len(pending) > longest:
                raise UnsupportedError(
                    f"the graph has a loop of operators through {pending[-1].name}; loops are read as While only"
                )
            operation = pending[-1]
            needed = [given.op for given in operation.inputs] + list(operation.control_inputs)
            missing = [other for other in needed if other.name not in ordered]
            if missing and operation.name not in ordered:
                pending += missing
                continue
            ordered.setdefault(operation.name, operation)
            pending.pop()
    return list(ordered.values())


def _data_gradient_beside(operation: Any, place: dict[str, int], listed: list[Any]) -> Any:
    """Return the operator that makes the data gradient where ``operation`` makes the weight gradient."""
    name = ""
    if operation.type == "Conv2DBackpropFilter":
        name = operation.name.removesuffix("Filter") + "Input"
    elif operation.type == "MatMul" and operation.name.endswith("_1") and "gradient_tape/" in operation.name:
        name = operation.name.removesuffix("_1")
    return listed[place[name]] if name in place else None
