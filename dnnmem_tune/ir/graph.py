"""Graph: the operators and tensors of one training step, as a graph framework executes them.

For frameworks that hand over a graph instead of calling operators one by one: TensorFlow,
MXNet, ONNX. A graph says what each operator reads and writes; *when* a tensor's memory is
taken and given back follows from an order of execution (``dnnmem_tune.liveness``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dnnmem_tune.ir.size import Polynomial, Size
from dnnmem_tune.ir.trace import Category, Coverage, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One value; it owns a storage, unless it is an alias or has no bytes on the device."""

    name: str
    """As the graph names it."""

    size: Polynomial
    """Bytes on the device; 0 for what is empty or lives in host memory."""

    category: Category

    resident: bool = False
    """Whether it is there before the first step and stays: weights, optimizer state, a batch the caller holds."""

    module: str = ""
    """Path of the module that a resident tensor belongs to; other tensors have their operator's."""

    made_with: tuple[Polynomial, ...] = ()
    """Bytes of what is taken before a resident tensor is made and given back after: random numbers to be scaled.

    Gone before the first step, but they decide where the tensor lies.
    """

    alias_of: int | None = None
    """Index of an earlier tensor whose storage it shares whatever the order: reshapes, reads of a variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Memory that an operator takes for itself while it runs."""

    size: Size
    """Bytes."""

    optional: bool = False
    """Whether the operator has another way when there is no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOperation:
    """One operator of the graph; it runs once in each step."""

    kind: str
    """Type of the operator, such as ``Conv2D``."""

    name: str = ""
    """As the graph names this one."""

    module: str = ""
    """Path of the module that it belongs to; empty where that is not known."""

    phase: Phase = Phase.FORWARD

    inputs: tuple[int, ...] = ()
    """Tensors it reads; one that it reads twice stands there twice."""

    outputs: tuple[int, ...] = ()
    """Tensors it writes. Each tensor is written by one operator at most."""

    after: tuple[int, ...] = ()
    """Operators that must have run before, besides those that write its inputs."""

    forwards: tuple[tuple[int, int], ...] = ()
    """Pairs of positions ``(output, input)``, in the order in which the framework tries them.

    The output takes over the input's storage if both have the same size and nobody else will
    read that storage: ``forward_input_or_allocate_output``, in-place options.
    """

    workspaces: tuple[Workspace, ...] = ()
    """Taken after the outputs, in this order, and given back when it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One step: its tensors, its operators and what is left of it."""

    tensors: tuple[Tensor, ...]

    operations: tuple[GraphOperation, ...]

    results: tuple[int, ...] = ()
    """Tensors that the caller receives; they live until the step has ended."""

    framework: str = ""
    """Framework and release, such as ``tensorflow 2.21.0``."""

    recorder: str = "graph"
    """How the graph was obtained."""

    batch_size: int = 0
    """The batch size of the sizes; 0 where they hold for every one."""

    coverage: Coverage = field(default_factory=Coverage)

    def check(self) -> None:
        """Verify that the graph refers only to what is there.

        Raises:
            ValueError: If an index is out of range, a tensor is written twice or both written and
                resident, an alias has no storage to share, or a tensor that is read is neither
                written nor resident.

        """
        written: set[int] = set()
        for number, operation in enumerate(self.operations):
            self._check_references(number, operation)
            for index in operation.outputs:
                if index in written or self.tensors[index].resident:
                    raise ValueError(f"tensor {index} is there before operator {number} writes it")
                written.add(index)
        for number, operation in enumerate(self.operations):
            for index in operation.inputs:
                if index not in written and not self.tensors[index].resident:
                    raise ValueError(f"operator {number} reads tensor {index}, which nothing writes")
        for index in self.results:
            if not 0 <= index < len(self.tensors):
                raise ValueError(f"the step returns tensor {index} of {len(self.tensors)}")
        self._check_aliases()

    def _check_references(self, number: int, operation: GraphOperation) -> None:
        for index in (*operation.inputs, *operation.outputs):
            if not 0 <= index < len(self.tensors):
                raise ValueError(f"operator {number} names tensor {index} of {len(self.tensors)}")
        for other in operation.after:
            if not 0 <= other < len(self.operations):
                raise ValueError(f"operator {number} runs after operator {other} of {len(self.operations)}")
        for output, given in operation.forwards:
            if not (0 <= output < len(operation.outputs) and 0 <= given < len(operation.inputs)):
                raise ValueError(f"operator {number} forwards input {given} to output {output}")

    def _check_aliases(self) -> None:
        for index, tensor in enumerate(self.tensors):
            other = tensor.alias_of
            if other is None:
                continue
            if not 0 <= other < index:
                raise ValueError(f"tensor {index} is an alias of tensor {other}, which does not come before it")
            if tensor.resident and not self.tensors[other].resident:
                raise ValueError(f"tensor {index} stays, but it is an alias of tensor {other}, which does not")
