"""Inference under ONNX Runtime: which buffer each value gets, and the trace of the first two runs.

Source:
    ``core/framework/allocation_planner.cc`` of ONNX Runtime: an output takes over the buffer of an input that
    ends there (aliases always, other kernels where they may run in place and shapes agree), else one of the same
    shape and element that became free before, which is then held in between, else a new one. Results of the
    model are never shared. ``core/framework/execution_frame.cc``: from the second run with one shape on, all
    of them lie in one block (``operators.memory_pattern``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from dnnmem_tune.frontends.onnx.building import TraceBuilder
from dnnmem_tune.frontends.onnx.flat import FlatModel, Node, TensorType
from dnnmem_tune.ir.size import Scratch
from dnnmem_tune.ir.trace import Category, Coverage, MemoryTrace, Phase
from dnnmem_tune.operators.convolution import Direction, convolution_scratch
from dnnmem_tune.operators.memory_pattern import ALIGNMENT_BYTES, pattern_scratch

_ALIASES = frozenset({"Reshape", "Identity", "Flatten", "Squeeze", "Unsqueeze", "Dropout"})
"""Kernels that always pass their input's buffer on. Source: ``Alias(0, 0)`` in their definitions."""

_ACTIVATIONS = (
    *("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu"),
    *("Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
)

_UNARY_ON_CPU = (
    *("Abs", "Celu", "Ceil", "Clip", "Erf", "Exp", "Floor", "Gelu"),
    *("Log", "Mish", "Neg", "Reciprocal", "Round", "Sqrt", "Softmax"),
)

_IN_PLACE: Mapping[str, frozenset[str]] = {
    "cuda": frozenset(_ACTIVATIONS),
    "cpu": frozenset((*_ACTIVATIONS, *_UNARY_ON_CPU)),
}
"""Execution provider -> operators that may run in the place of their first input.

Source: ``MayInplace(0, 0)`` in the kernels' definitions, such as ``providers/cuda/activation/activations.cc``;
``binary_elementwise_ops.cc`` and ``unary_elementwise_ops.cc`` beside it have none. The CPU is here because its
arena is the one that can be watched without a card.
"""

_DTYPES = {1: "float32", 10: "float16", 16: "bfloat16", 11: "float64"}


@dataclass(slots=True)
class _Buffer:
    """Memory that several values share, one after the other."""

    tensor: TensorType
    first: int
    last: int
    is_result: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Buffers of one run."""

    buffers: list[_Buffer]

    buffer_of: Mapping[str, int]
    """Value -> index of its buffer; inputs and weights have none."""


def plan_buffers(flat: FlatModel, provider: str = "cuda") -> Plan:
    """Return the buffer of every value that the nodes of ``flat`` make."""
    return _Planner(flat, _IN_PLACE[provider]).plan()


class _Planner:
    def __init__(self, flat: FlatModel, in_place: frozenset[str]) -> None:
        self._flat = flat
        self._in_place = in_place
        self._results = set(flat.outputs)
        self._last_use = {name: index for index, node in enumerate(flat.nodes) for name in node.inputs}
        self._uses = Counter(name for node in flat.nodes for name in node.inputs if name)
        self._uses.update(flat.outputs)
        self._buffers: list[_Buffer] = []
        self._buffer_of: dict[str, int] = {}
        self._remaining: list[int] = []
        """Of each buffer: reads to come."""
        self._free: list[int] = []
        """Buffers without reads to come, the one that became so last in front."""

    def plan(self) -> Plan:
        for index, node in enumerate(self._flat.nodes):
            for position, output in enumerate(node.outputs):
                if output and output not in self._flat.on_host:
                    self._place(index, node, position, output)
            for name in node.inputs:
                held = self._buffer_of.get(name)
                if held is not None:
                    self._remaining[held] -= 1
                    self._release(held)
            for output in node.outputs:
                held = self._buffer_of.get(output)
                if held is not None:
                    self._release(held)
        return Plan(self._buffers, self._buffer_of)

    def _place(self, index: int, node: Node, position: int, output: str) -> None:
        tensor, is_result = self._flat.types[output], output in self._results
        chosen = None
        if not is_result:
            chosen = self._reusable_input(node) if position == 0 else None
            if chosen is None:
                chosen = self._reusable_buffer(tensor)
        if chosen is None:
            self._buffers.append(_Buffer(tensor, index, index, is_result))
            self._remaining.append(0)
            chosen = len(self._buffers) - 1
        self._buffer_of[output] = chosen
        self._remaining[chosen] += self._uses[output]
        last = len(self._flat.nodes) if is_result else self._last_use.get(output, index)
        self._buffers[chosen].last = max(self._buffers[chosen].last, last)

    def _release(self, held: int) -> None:
        if not self._remaining[held] and held not in self._free:
            self._free.insert(0, held)

    def _reusable_input(self, node: Node) -> int | None:
        """Return the buffer of the first input, where the first output takes it over."""
        held = self._buffer_of.get(node.inputs[0]) if node.inputs else None
        if held is None or node.op in _ALIASES:
            return held
        same = _same(self._flat.types[node.inputs[0]], self._flat.types[node.outputs[0]])
        return held if node.op in self._in_place and self._remaining[held] == 1 and same else None

    def _reusable_buffer(self, tensor: TensorType) -> int | None:
        """Return a buffer that became free; it is held from then until here, and not given back in between."""
        if not tensor.shape:
            return None
        for place, held in enumerate(self._free):
            if _same(self._buffers[held].tensor, tensor) and not self._buffers[held].is_result:
                del self._free[place]
                return held
        return None


def _same(left: TensorType, right: TensorType) -> bool:
    return left.shape == right.shape and left.bits == right.bits


def inference_trace(
    flat: FlatModel, *, memory_pattern: bool, framework: str, provider: str = "cuda"
) -> MemoryTrace:
    """Return the trace of two runs: the first finds its memory piece by piece, the second in one block.

    The first storage holds all weights: it is reserved outside the arena.

    Args:
        flat: The graph that runs.
        memory_pattern: Whether the session plans a block from the second run on, as it does by default.
        framework: What to call the release.
        provider: ``cuda``, or ``cpu`` to compare with a log of a machine without a card.

    """
    plan = plan_buffers(flat, provider)
    builder = TraceBuilder()
    builder.begin("weights", "", Phase.BUILD, -1)
    builder.allocate(sum(_aligned(flat.types[name].nbytes) for name in flat.weights), Category.WEIGHT)
    builder.mark("load")
    _Run(flat, plan, builder).write(0, pattern=False)
    builder.mark("first run")
    _Run(flat, plan, builder).write(1, pattern=memory_pattern)
    builder.mark("later runs")
    coverage = Coverage(
        num_operations=len(flat.nodes),
        unknown_operators=dict(flat.unknown),
        bounded=dict(flat.bounded),
        notes=tuple(dict.fromkeys(flat.notes)),
    )
    return builder.finish(coverage=coverage, framework=framework, recorder="graph")


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class _Run:
    """One run of the session, written into a trace."""

    def __init__(self, flat: FlatModel, plan: Plan, builder: TraceBuilder) -> None:
        self._flat = flat
        self._plan = plan
        self._builder = builder
        last = len(flat.nodes)
        self._begins: dict[int, list[int]] = {}
        self._ends: dict[int, list[int]] = {}
        for number, buffer in enumerate(plan.buffers):
            self._begins.setdefault(buffer.first, []).append(number)
            self._ends.setdefault(min(buffer.last, last), []).append(number)

    def write(self, step: int, *, pattern: bool) -> None:
        flat, builder = self._flat, self._builder
        builder.begin("feed", "", Phase.FORWARD, step)
        held = [builder.allocate(flat.types[name].nbytes, Category.INPUT) for name in flat.inputs]
        if pattern:
            builder.begin("memory pattern", "", Phase.FORWARD, step)
            # Without room for the block a run goes on piece by piece, as the first did (execution_frame.cc).
            held.append(builder.allocate(self._pattern(), Category.ACTIVATION, optional=True))
        storages: dict[int, int] = {}
        for index, node in enumerate(flat.nodes):
            builder.begin(node.op, node.module, Phase.FORWARD, step)
            for number in self._begins.get(index, ()):
                buffer = self._plan.buffers[number]
                if buffer.is_result or not pattern:
                    storages[number] = builder.allocate(buffer.tensor.nbytes, Category.ACTIVATION)
            self._workspace(node)
            for number in self._ends.get(index, ()):
                if number in storages:
                    builder.free(storages.pop(number))
        for storage in [*storages.values(), *held]:
            builder.free(storage)

    def _pattern(self) -> Scratch:
        planned = [number for number, buffer in enumerate(self._plan.buffers) if not buffer.is_result]
        place = {number: index for index, number in enumerate(planned)}
        events: list[int] = []
        for index in range(len(self._flat.nodes)):
            events.extend(place[number] for number in self._begins.get(index, ()) if number in place)
            events.extend(~place[number] for number in self._ends.get(index, ()) if number in place)
        return pattern_scratch([self._plan.buffers[number].tensor.nbytes for number in planned], events)

    def _workspace(self, node: Node) -> None:
        types = self._flat.types
        if node.op not in ("Conv", "com.microsoft.FusedConv") or not node.outputs[0]:
            return
        given, weight, output = types[node.inputs[0]], types[node.inputs[1]], types[node.outputs[0]]
        scratch = convolution_scratch(
            Direction.FORWARD,
            input_shape=given.shape,
            weight_shape=weight.shape,
            output_shape=output.shape,
            stride=node.attributes.get("strides", (1,) * (len(given.shape) - 2)),
            groups=node.attributes.get("group", 1),
            dtype=_DTYPES.get(given.element, "float32"),
            itemsize=given.bits // 8,
        )
        self._builder.free(self._builder.allocate(scratch, Category.WORKSPACE))
