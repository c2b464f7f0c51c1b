"""One training step of a model that exists only as a forward graph, by reverse-mode rules.

The loss is the mean of the model's results. Every weight in a place where its operator learns is trained.
How a target framework executes the step decides what shares memory: PyTorch runs operators as they
are called and computes nothing in place; graph executors forward buffers, and TensorFlow applies each
gradient as soon as it is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dnnmem_tune.frontends.onnx.first_use import BACKWARD_HANDLE, FORWARD_HANDLE, MATRIX_PRODUCTS, taken_when_used
from dnnmem_tune.frontends.onnx.flat import FlatModel, Node, TensorType
from dnnmem_tune.frontends.onnx.optimizers import Optimizer
from dnnmem_tune.ir.graph import Graph, GraphOperation, Tensor, Workspace
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category, Coverage, MemoryTrace, Phase
from dnnmem_tune.liveness.lower import lower
from dnnmem_tune.liveness.schedule import as_written
from dnnmem_tune.operators.convolution import Direction, convolution_scratch
from dnnmem_tune.operators.differentiation import ALL, PYTORCH, TENSORFLOW, GradientRule, gradient_rule
from dnnmem_tune.operators.matmul import cublas_workspace_bytes

_DTYPES = {1: "float32", 10: "float16", 16: "bfloat16", 11: "float64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTarget:
    """Whose training step is written down."""

    name: str
    """``pytorch``, ``tensorflow`` or ``ort``."""

    optimizer: Optimizer

    compute_capability: tuple[int, int] = (8, 0)
    """Decides the size of the cuBLAS workspaces."""

    float_bits: int = 32
    """Of one element of what is single precision in the file; 16 for pure half precision."""

    @property
    def forwards(self) -> bool:
        """Whether operators run in the place of what they read where they may."""
        return self.name != PYTORCH

    @property
    def applies_at_once(self) -> bool:
        """Whether a weight is updated as soon as its gradient is there."""
        return self.name == TENSORFLOW


def training_trace(flat: FlatModel, target: TrainingTarget, *, num_steps: int, framework: str) -> MemoryTrace:
    """Return the trace of several training steps; see ``training_graph``."""
    graph = training_graph(flat, target, framework=framework)
    trace = lower(graph, as_written(graph), num_steps=num_steps)
    return taken_when_used(trace) if target.name == PYTORCH else trace


def training_graph(flat: FlatModel, target: TrainingTarget, *, framework: str) -> Graph:
    """Return one training step.

    Args:
        flat: The forward graph.
        target: Whose step it is.
        framework: What to call the releases it comes from.

    """
    return _Writer(flat, target).write(framework)


class _Writer:
    def __init__(self, flat: FlatModel, target: TrainingTarget) -> None:
        self._flat = flat
        self._target = target
        self._tensors: list[Tensor] = []
        self._operations: list[GraphOperation] = []
        self._index: dict[str, int] = {}
        self._trained = self._trained_weights()
        self._wanted: set[str] = set(self._trained)
        """Values that have a gradient."""
        self._kept: dict[int, int] = {}
        """Number of a node -> tensor with what it keeps besides inputs and outputs."""
        self._gradients: dict[str, int] = {}
        """Value -> tensor with its gradient, as far as it is summed up."""
        self._weight_gradients: dict[str, int] = {}
        self._no_rule: dict[str, int] = dict(flat.unknown)

    def write(self, framework: str) -> Graph:
        self._place_resident()
        for number, node in enumerate(self._flat.nodes):
            self._forward(number, node)
        self._loss()
        for number in reversed(range(len(self._flat.nodes))):
            self._backward(number, self._flat.nodes[number])
        if not self._target.applies_at_once:
            self._update(self._weight_gradients)
        flat = self._flat
        results = tuple(self._index[name] for name in dict.fromkeys(flat.outputs) if name in self._index)
        return Graph(
            tensors=tuple(self._tensors),
            operations=tuple(self._operations),
            results=tuple(index for index in results if not self._tensors[index].resident),
            framework=framework,
            coverage=Coverage(
                num_operations=len(self._operations),
                unknown_operators=self._no_rule,
                bounded=dict(flat.bounded),
                notes=tuple(dict.fromkeys(flat.notes)),
            ),
        )

    # What is there all the time

    def _trained_weights(self) -> dict[str, None]:
        weights = {name for name in self._flat.weights if self._flat.types[name].is_float}
        trained: dict[str, None] = {}
        for node in self._flat.nodes:
            rule = gradient_rule(node.op)
            for position in rule.learns if rule is not None else ():
                name = node.inputs[position] if position < len(node.inputs) else ""
                # A single number is a constant of the formula, such as the epsilon under a root.
                if name in weights and self._flat.types[name].num_elements > 1:
                    trained[name] = None
        return trained

    def _place_resident(self) -> None:
        if self._target.name == PYTORCH and any(node.op in MATRIX_PRODUCTS for node in self._flat.nodes):
            nbytes = cublas_workspace_bytes(self._target.compute_capability)
            for handle in (FORWARD_HANDLE, BACKWARD_HANDLE):
                self._tensor(handle, nbytes, Category.WORKSPACE, resident=True)
        for name in self._flat.weights:
            category = Category.WEIGHT if name in self._trained else Category.BUFFER
            self._index[name] = self._tensor(name, self._nbytes(name), category, resident=True)
        for name in self._trained:
            for state in self._target.optimizer.states:
                self._tensor(f"{name} {state}", self._nbytes(name), Category.OPTIMIZER_STATE, resident=True)
        for name in self._flat.inputs:
            self._index[name] = self._tensor(name, self._nbytes(name), Category.INPUT, resident=True)

    # Forward

    def _forward(self, number: int, node: Node) -> None:
        rule = gradient_rule(node.op)
        if rule is None and node.op not in self._flat.unknown:
            self._no_rule[node.op] = self._no_rule.get(node.op, 0) + 1
        given = [self._index[name] for name in node.inputs if name in self._index]
        wanted = self._wanted_inputs(node, rule)
        is_view = rule is not None and self._target.name in rule.views and node.inputs[0] in self._index
        outputs = []
        for position, name in enumerate(node.outputs):
            if not name or name in self._flat.on_host:
                continue
            alias = self._index[node.inputs[0]] if is_view and (position == 0 or node.op == "Split") else None
            if alias is not None and self._tensors[alias].resident:
                alias = None  # a view of what stays is no value of the step; its bytes are small
            self._index[name] = self._tensor(name, self._nbytes(name), Category.ACTIVATION, alias=alias)
            outputs.append(self._index[name])
            if wanted and self._flat.types[name].is_float:
                self._wanted.add(name)
        if not outputs:
            return
        kept_bytes = self._kept_bytes(node, rule, wanted)
        if kept_bytes:
            self._kept[number] = self._tensor(f"{node.name} kept", kept_bytes, Category.ACTIVATION)
            outputs.append(self._kept[number])
        self._operations.append(
            GraphOperation(
                kind=node.op,
                name=node.name,
                module=node.module,
                phase=Phase.FORWARD,
                inputs=tuple(given),
                outputs=tuple(outputs),
                forwards=self._forward_pairs(rule, len(given)),
                workspaces=(*self._workspaces(node, Direction.FORWARD), *self._temporaries(node, rule, 0)),
            )
        )

    def _wanted_inputs(self, node: Node, rule: GradientRule | None) -> list[int]:
        """Return the positions of the inputs whose gradient is to be computed."""
        if rule is None:  # bounded: as if it could be differentiated with respect to everything
            candidates: Iterable[int] = range(len(node.inputs))
        elif ALL in rule.gradients:
            candidates = range(len(node.inputs))
        else:
            candidates = (position for position in rule.gradients if position < len(node.inputs))
        return [position for position in candidates if node.inputs[position] in self._wanted]

    def _kept_bytes(self, node: Node, rule: GradientRule | None, wanted: list[int]) -> int:
        if not wanted:
            return 0
        per_element = rule.kept_bytes.get(self._target.name, 0) if rule is not None else 0
        kept = per_element * self._flat.types[node.outputs[0]].num_elements if node.outputs[0] else 0
        # In a loop each iteration keeps its own; the graph holds those of one.
        repeated = sum(
            self._nbytes(name) for name in self._saved(node, rule, wanted) if name not in self._flat.weights
        )
        return kept * node.times + repeated * (node.times - 1)

    def _saved(self, node: Node, rule: GradientRule | None, wanted: list[int]) -> list[str]:
        """Return the values that the gradients of the wanted inputs take."""
        if rule is None:
            return [name for name in (*node.inputs, *node.outputs) if name in self._index]
        names: dict[str, None] = {}
        for position in wanted:
            for taken in rule.gradients[ALL if ALL in rule.gradients else position]:
                taker, _, code = taken.rpartition(":")
                if taker not in ("", self._target.name):
                    continue
                values, index = (node.inputs, node.outputs)[code[0] == "y"], int(code[1:])
                if index < len(values) and values[index] in self._index:
                    names[values[index]] = None
        return list(names)

    def _forward_pairs(self, rule: GradientRule | None, num_inputs: int) -> tuple[tuple[int, int], ...]:
        if rule is None or not rule.in_place or not self._target.forwards:
            return ()
        return tuple((0, given) for given in range(min(num_inputs, 2)))

    # Backward

    def _loss(self) -> None:
        for name in dict.fromkeys(self._flat.outputs):
            if name in self._wanted and name in self._index:
                gradient = self._tensor(f"{name} gradient", self._nbytes(name), Category.OUTPUT_GRADIENT)
                self._operations.append(
                    GraphOperation(
                        kind="LossGradient", phase=Phase.BACKWARD, inputs=(self._index[name],), outputs=(gradient,)
                    )
                )
                self._gradients[name] = gradient

    def _backward(self, number: int, node: Node) -> None:
        rule = gradient_rule(node.op)
        wanted = self._wanted_inputs(node, rule)
        arrived = [self._gradients[name] for name in node.outputs if name in self._gradients]
        for name in node.outputs:
            self._gradients.pop(name, None)
        if not wanted or not arrived:
            return
        reads = [*arrived, *(self._index[name] for name in self._saved(node, rule, wanted))]
        if number in self._kept:
            reads.append(self._kept[number])
        made: list[tuple[str, int]] = []
        passed: list[tuple[str, int]] = []
        for position in wanted:
            name = node.inputs[position]
            if self._passes(node, rule, position):
                passed.append((name, arrived[0]))
                continue
            category = Category.WEIGHT_GRADIENT if name in self._trained else Category.OUTPUT_GRADIENT
            made.append((name, self._tensor(f"{name} gradient", self._nbytes(name), category)))
        if made:
            self._operations.append(
                GraphOperation(
                    kind=f"{node.op}Gradient",
                    name=node.name,
                    module=node.module,
                    phase=Phase.BACKWARD,
                    inputs=tuple(reads),
                    outputs=tuple(gradient for _, gradient in made),
                    forwards=self._forward_pairs(rule, 1),
                    workspaces=(
                        *self._workspaces(node, Direction.DATA_GRADIENT, 0 in wanted),
                        *self._workspaces(node, Direction.FILTER_GRADIENT, 1 in wanted),
                        *self._temporaries(node, rule, 1),
                    ),
                )
            )
        for name, gradient in [*made, *passed]:
            self._collect(name, gradient)
        if self._target.applies_at_once:
            ready = {name: self._weight_gradients.pop(name) for name, _ in made if name in self._weight_gradients}
            self._update(ready)

    def _passes(self, node: Node, rule: GradientRule | None, position: int) -> bool:
        name = node.inputs[position]
        if rule is None or not rule.passes or name in self._trained:
            return False
        return self._flat.types[name].num_elements == self._flat.types[node.outputs[0]].num_elements

    def _collect(self, name: str, gradient: int) -> None:
        """Take a gradient in, and add it to what arrived before."""
        collected = self._weight_gradients if name in self._trained else self._gradients
        before = collected.get(name)
        if before is not None:
            category = self._tensors[gradient].category
            total = self._tensor(f"{name} gradient", self._nbytes(name), category)
            self._operations.append(
                GraphOperation(
                    kind="AccumulateGradient",
                    phase=Phase.BACKWARD,
                    inputs=(before, gradient),
                    outputs=(total,),
                    forwards=((0, 0), (0, 1)),
                )
            )
            gradient = total
        collected[name] = gradient

    # Optimizer

    def _update(self, gradients: dict[str, int]) -> None:
        if not gradients:
            return
        temporaries = self._target.optimizer.num_temporaries(self._target.name)
        self._operations.append(
            GraphOperation(
                kind=self._target.optimizer.name,
                phase=Phase.OPTIMIZER,
                inputs=tuple(gradients.values()),
                # One for each weight: the update of all of them works on lists of tensors.
                workspaces=tuple(
                    Workspace(size=Polynomial(self._nbytes(name)))
                    for _ in range(temporaries)
                    for name in gradients
                ),
            )
        )

    # Sizes

    def _tensor(
        self, name: str, nbytes: int, category: Category, *, resident: bool = False, alias: int | None = None
    ) -> int:
        size = Polynomial(nbytes)
        self._tensors.append(Tensor(name=name, size=size, category=category, resident=resident, alias_of=alias))
        return len(self._tensors) - 1

    def _nbytes(self, name: str) -> int:
        tensor = self._flat.types[name]
        return -(-tensor.num_elements * self._bits(tensor) // 8)

    def _bits(self, tensor: TensorType) -> int:
        return min(tensor.bits, self._target.float_bits) if tensor.is_float else tensor.bits

    def _temporaries(self, node: Node, rule: GradientRule | None, backward: int) -> tuple[Workspace, ...]:
        number = rule.temporaries.get(self._target.name, (0, 0))[backward] if rule is not None else 0
        return (Workspace(size=Polynomial(self._nbytes(node.outputs[0]))),) * number if number else ()

    def _workspaces(self, node: Node, direction: Direction, is_wanted: bool = True) -> tuple[Workspace, ...]:
        if node.op != "Conv" or not is_wanted:
            return ()
        given, weight, output = (self._flat.types[name] for name in (*node.inputs[:2], node.outputs[0]))
        bits = self._bits(given)
        scratch = convolution_scratch(
            direction,
            input_shape=given.shape,
            weight_shape=weight.shape,
            output_shape=output.shape,
            stride=node.attributes.get("strides", (1,) * (len(given.shape) - 2)),
            groups=node.attributes.get("group", 1),
            dtype="float16" if bits == 16 else _DTYPES.get(given.element, "float32"),
            itemsize=math.ceil(bits / 8),
        )
        return (Workspace(size=scratch, optional=True),)
