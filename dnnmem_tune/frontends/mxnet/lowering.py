"""From bound graphs to the trace of a training job, in each of MXNet's ways to run one.

Executor: arguments, gradients and the blocks of the plan are taken when the symbol is bound
and kept. Gluon: parameters and gradients are kept; batch, outputs and the blocks of the plans
(none in imperative mode) come and go with each step, each taken when its first entry is
computed and given back once all that lies in it has been read.

Source: ``GraphExecutor`` in ``src/executor/graph_executor.cc``; ``CachedOp::DynamicForward`` and
``DynamicBackward`` in ``src/imperative/cached_op.cc``; ``Imperative::Backward`` and ``RunGraph`` in
``src/imperative/imperative.cc`` (MXNet 1.9.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dnnmem_tune.frontends.mxnet.bound import BoundGraph, Node
from dnnmem_tune.frontends.mxnet.convolutions import temporary_space_of
from dnnmem_tune.frontends.mxnet.plan import EXTERNAL, MemoryPlan, count_reads, executor_plan, plan_memory
from dnnmem_tune.frontends.mxnet.settings import Execution, Settings, num_states, parse_optimizer
from dnnmem_tune.ir.size import Polynomial, Size
from dnnmem_tune.ir.trace import Category, Coverage, Mark, MemoryTrace, Operation, Phase, Storage

_BULK = 15
"""Operators that the engine runs as one; what each of them read is given back when the last has run.

Source: ``MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN``, ``Engine::set_bulk_size`` in ``CachedOp::Forward`` and in
``Imperative::Backward``; operators of an imperative forward are not put together.
"""

_STATEFUL = frozenset({"Dropout", "_backward_Dropout", "RNN", "_backward_RNN", "Custom", "_backward_Custom"})
"""Operators that the engine runs alone in imperative mode (``PushOperator`` in ``imperative_utils.h``).

Not so inside a ``CachedOp``, as far as the GPU build shows: an LSTM's pool is 6 % larger than it would be.
"""

_IMPERATIVE_NOTE = (
    "Imperative execution gives memory back as its threads come to it: of five networks the GPU build's pool was "
    "within 6 % of the estimate for four, and 22 to 38 % above it for ResNet-50, varying from run to run."
)

_SINGLE = 4
"""Bytes of a number in single precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundJob:
    """A network that was bound at one batch size."""

    network: BoundGraph
    """With its loss in executor mode, without it in the others."""

    loss: BoundGraph | None
    """The loss as a graph of its own, where there is one; its first input is the network's output."""

    inputs: frozenset[str]
    """Names of the variables that a batch fills: data and labels."""

    framework: str
    """Framework and release."""

    notes: tuple[str, ...] = ()
    """What else a reader of an estimate should know."""

    recorder: str = "bound symbol"


def lower(job: BoundJob, settings: Settings, *, batch_size: int, num_steps: int) -> MemoryTrace:
    """Return the allocations and frees of a training job.

    Args:
        job: What is trained.
        settings: How it is run.
        batch_size: The batch size that it was bound at.
        num_steps: Steps to run, at least 1.

    """
    writer = _Executor(job, settings) if settings.execution is Execution.EXECUTOR else _Gluon(job, settings)
    writer.build()
    writer.mark("build")
    for step in range(num_steps):
        writer.step = step
        writer.run_step()
        writer.mark(f"step {step}")
    return writer.finish(batch_size)


class _Writer:
    """Writes down what is requested and given back."""

    def __init__(self, job: BoundJob, settings: Settings) -> None:
        self.job = job
        self.settings = settings
        self.step = -1
        self._storages: list[Storage] = []
        self._operations: list[Operation] = []
        self._events: list[int] = []
        self._marks: list[Mark] = []
        self._has_state = False
        variables = {node.name: node.outputs[0] for node in job.network.nodes if node.is_variable}
        self._trained = [
            (name, number)
            for name, number in variables.items()
            if name not in job.inputs and name not in job.network.auxiliary and not name.startswith(HEAD_GRADIENT)
        ]
        """Weights: name and entry."""
        self._variables = variables

    def build(self) -> None:
        raise NotImplementedError

    def run_step(self) -> None:
        raise NotImplementedError

    def mark(self, name: str) -> None:
        self._marks.append(Mark(name, len(self._events)))

    def take(self, size: Size | int, category: Category, kind: str, module: str, phase: Phase) -> int:
        """Request a storage and return its number."""
        self._operations.append(Operation(kind, module, phase, self.step))
        size = Polynomial(size) if isinstance(size, int) else size
        self._storages.append(Storage(size, category, len(self._operations) - 1))
        self._events.append(len(self._storages) - 1)
        return len(self._storages) - 1

    def give(self, storage: int) -> None:
        self._events.append(~storage)

    def finish(self, batch_size: int) -> MemoryTrace:
        trace = MemoryTrace(
            storages=tuple(self._storages),
            operations=tuple(self._operations),
            events=tuple(self._events),
            marks=tuple(self._marks),
            coverage=Coverage(num_operations=self._num_operators(), notes=self._notes()),
            framework=self.job.framework,
            recorder=f"{self.job.recorder}, {self.settings.execution}",
            batch_sizes=(batch_size,),
        )
        trace.check()
        return trace

    def _notes(self) -> tuple[str, ...]:
        if self.settings.execution is Execution.IMPERATIVE and self.settings.training:
            return (*self.job.notes, _IMPERATIVE_NOTE)
        return self.job.notes

    def take_variable(self, name: str, category: Category) -> int:
        entry = self.job.network.entries[self._variables[name]]
        return self.take(entry.nbytes, category, "bind", name, Phase.BUILD)

    def take_weights(self) -> None:
        for name, _ in self._trained:
            self.take_variable(name, Category.WEIGHT)
            if self.settings.training:
                self.take_variable(name, Category.WEIGHT_GRADIENT)
        for name in sorted(self.job.network.auxiliary & self._variables.keys()):
            self.take_variable(name, Category.BUFFER)

    def take_temporary_space(self) -> None:
        scratch = temporary_space_of(self.job.network)
        if scratch is not None:
            self.take(scratch, Category.WORKSPACE, "temporary space", "", Phase.FORWARD)

    def update_weights(self) -> None:
        """The optimizer makes its state when it first meets a weight."""
        name, _ = parse_optimizer(self.settings.optimizer)
        for weight, number in self._trained:
            entry = self.job.network.entries[number]
            has_copy = self.settings.precision == "fp16" and entry.itemsize < _SINGLE
            nbytes = entry.num_elements * (_SINGLE if has_copy else entry.itemsize)
            if not self._has_state:
                for _ in range(num_states(self.settings.optimizer) + has_copy):
                    self.take(nbytes, Category.OPTIMIZER_STATE, f"{name} state", weight, Phase.OPTIMIZER)
            if name == "lamb":
                # lamb_update_phase1 writes the direction of the step to an array of its own.
                self.give(self.take(nbytes, Category.TEMPORARY, "lamb_update_phase1", weight, Phase.OPTIMIZER))
        self._has_state = True

    def _num_operators(self) -> int:
        graphs = [self.job.network] + ([self.job.loss] if self.job.loss is not None else [])
        return sum(not node.is_variable for graph in graphs for node in graph.nodes)


HEAD_GRADIENT = "_head_grad"
"""How the gradients of a symbol's outputs are called."""


class _Executor(_Writer):
    """Everything is taken when the symbol is bound, but the optimizer's state and temporary space."""

    def build(self) -> None:
        graph = self.job.network
        for name in self._variables:
            if name in self.job.inputs:
                self.take_variable(name, Category.INPUT)
        self.take_weights()
        plan = executor_plan(graph)
        writer_of = {number: node for node in graph.nodes for number in node.outputs}
        first_backward = graph.num_forward_nodes
        backward = {number for node in graph.nodes[first_backward:] for number in node.outputs}
        largest = _largest_entries(graph, plan)
        for block in sorted(range(len(plan.block_bytes)), key=lambda block: plan.block_bytes[block], reverse=True):
            number = largest[block]
            category = Category.OUTPUT_GRADIENT if number in backward else Category.ACTIVATION
            node = writer_of[number]
            self.take(plan.block_bytes[block], category, node.kind, node.name, Phase.BUILD)

    def run_step(self) -> None:
        if self.step == 0:
            self.take_temporary_space()
        if self.settings.training:
            self.update_weights()


def _largest_entries(graph: BoundGraph, plan: MemoryPlan) -> dict[int, int]:
    largest: dict[int, int] = {}
    for number, block in enumerate(plan.block_of):
        if block >= 0 and graph.entries[number].nbytes > graph.entries[largest.get(block, number)].nbytes - (
            block not in largest
        ):
            largest[block] = number
    return largest


class _Gluon(_Writer):
    """Parameters stay; the rest comes and goes with each step."""

    def __init__(self, job: BoundJob, settings: Settings) -> None:
        super().__init__(job, settings)
        self._engine = _Engine(self)
        self._network = _CachedGraph(self, job.network, self._engine)
        self._loss = (
            _CachedGraph(self, job.loss, self._engine) if job.loss is not None and settings.training else None
        )
        self._batch: list[int] = []
        self._results: list[int] = []

    def build(self) -> None:
        self.take_weights()

    def run_step(self) -> None:
        if self.step == 0:
            self.take_temporary_space()
        batch = [
            self.take(nbytes, Category.INPUT, "batch", name, Phase.FORWARD) for name, nbytes in self._batch_sizes()
        ]
        # The loop's variables hold the last batch until the next one is there.
        for storage in self._batch:
            self.give(storage)
        self._batch = batch
        outputs = self._network.forward()
        if not self.settings.training:
            self._replace_results(outputs)
            return
        if self._loss is None:
            self._network.backward(())
            self._replace_results(outputs)
        else:
            losses = self._loss.forward()
            heads = [self._take_like(storage, "ones_like") for storage in losses]
            gradients = self._loss.backward(heads)
            self._network.backward(gradients[:1])
            for storage in (*outputs, *gradients[1:]):
                self.give(storage)
            self._replace_results(losses)
        self.update_weights()

    def _batch_sizes(self) -> Iterable[tuple[str, int]]:
        for graph in (self.job.network, self.job.loss):
            for node in graph.nodes if graph is not None else ():
                if node.is_variable and node.name in self.job.inputs:
                    assert graph is not None
                    yield node.name, graph.entries[node.outputs[0]].nbytes

    def _take_like(self, storage: int, kind: str) -> int:
        return self.take(self._storages[storage].size, Category.OUTPUT_GRADIENT, kind, "", Phase.BACKWARD)

    def _replace_results(self, results: list[int]) -> None:
        for storage in self._results:
            self.give(storage)
        self._results = results


class _Engine:
    """Puts operators together, and gives back what they read when the last of them has run."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self._num_operators = 0
        self._waiting: list[int] = []
        self._alone = _STATEFUL if writer.settings.execution is Execution.IMPERATIVE else frozenset()

    def begin(self, kind: str) -> None:
        """An operator is about to run."""
        if kind in self._alone:
            self.flush()

    def end(self, kind: str, bulk: int) -> None:
        """It has run, as one of at most ``bulk``."""
        self._num_operators += 1
        if self._num_operators >= bulk or kind in self._alone:
            self.flush()

    def give(self, storage: int) -> None:
        """Give a storage back when those have run that were put together."""
        self._waiting.append(storage)

    def flush(self) -> None:
        """Run what was put together."""
        for storage in self._waiting:
            self._writer.give(storage)
        self._waiting.clear()
        self._num_operators = 0


class _CachedGraph:
    """One graph that runs forward, and backward afterwards; a ``CachedOp``, or operators one by one."""

    def __init__(self, writer: _Gluon, graph: BoundGraph, engine: _Engine) -> None:
        self._writer = writer
        self._engine = engine
        self._graph = graph
        self._recording = writer.settings.training
        self._keeps = writer.settings.execution is Execution.STATIC
        middle = graph.num_forward_nodes
        self._forward_nodes, self._backward_nodes = graph.nodes[:middle], graph.nodes[middle:]
        variables = [number for node in graph.nodes if node.is_variable for number in node.outputs]
        results = list(graph.outputs[: graph.num_forward_outputs])
        gradients = list(graph.outputs[graph.num_forward_outputs :])
        self._results = results
        self._gradients = gradients
        forward_entries = [number for node in self._forward_nodes for number in node.outputs]
        saved = count_reads(graph, start_node=middle) if self._recording else [0] * len(graph.entries)
        inputs = [number for node in self._forward_nodes if node.is_variable for number in node.outputs]
        # Inputs and outputs are held by the record of the call as well.
        forward_reads = _added(count_reads(graph, results + inputs, stop_node=middle), saved)
        backward_reads = _added(saved, _counted(len(graph.entries), results + inputs + results + gradients))
        self._forward_reads, self._backward_reads = forward_reads, backward_reads
        self._planned = writer.settings.execution is not Execution.IMPERATIVE
        if not self._planned:
            self._blocks = _own_blocks(graph, {*variables, *gradients, *results})
        else:
            self._blocks = _merged(
                plan_memory(graph, external={*variables, *results}, ref_counts=forward_reads, stop_node=middle),
                plan_memory(
                    graph,
                    external={*variables, *results, *gradients, *forward_entries},
                    ref_counts=backward_reads,
                    start_node=middle,
                ),
            )
        self._sizes = [0] * (max(self._blocks, default=-1) + 1)
        for number, block in enumerate(self._blocks):
            if block >= 0:
                self._sizes[block] = max(self._sizes[block], graph.entries[number].nbytes)
        self._storage_of: dict[int, int] = {}
        """Block -> storage, while it is there."""
        self._entries_in: dict[int, int] = {}
        """Block -> entries in it that are still to be read."""
        self._reads: list[int] = []

    def forward(self) -> list[int]:
        """Run the forward nodes; return the storages of the outputs."""
        self._reads = list(self._forward_reads)
        forward_entries = {number for node in self._forward_nodes for number in node.outputs}
        self._entries_in = self._count_entries(forward_entries)
        outputs: dict[int, int] = {}
        for node in self._forward_nodes:
            if node.is_variable:
                continue
            self._engine.begin(node.kind)
            for number in node.outputs:
                if number in self._results:
                    nbytes = self._graph.entries[number].nbytes
                    outputs[number] = self._writer.take(
                        nbytes, Category.ACTIVATION, node.kind, node.name, Phase.FORWARD
                    )
                else:
                    self._touch(number, node, Phase.FORWARD, Category.ACTIVATION)
            self._read(node, _BULK if self._planned else 1)
        self._engine.flush()
        return [outputs[number] for number in self._results if number in outputs]

    def backward(self, heads: Iterable[int]) -> list[int]:
        """Run the backward nodes; return the storages of the gradients that are arrays of their own.

        Args:
            heads: Storages of the gradients of the outputs; they are given back once they are read.

        """
        forward_reads = self._backward_reads
        self._reads = list(forward_reads)
        backward_entries = {number for node in self._backward_nodes for number in node.outputs}
        self._entries_in |= self._count_entries(backward_entries)
        gradients: list[int] = []
        is_loss = self._graph is self._writer.job.loss
        for node in self._backward_nodes:
            if node.is_variable:
                continue
            self._engine.begin(node.kind)
            for number in node.outputs:
                if number not in self._gradients:
                    self._touch(number, node, Phase.BACKWARD, Category.OUTPUT_GRADIENT)
                elif is_loss:
                    nbytes = self._graph.entries[number].nbytes
                    gradients.append(
                        self._writer.take(nbytes, Category.OUTPUT_GRADIENT, node.kind, node.name, Phase.BACKWARD)
                    )
            self._read(node, _BULK)
        if self._planned or not is_loss:
            self._engine.flush()
        if not self._keeps:
            for storage in self._storage_of.values():
                self._writer.give(storage)
            self._storage_of.clear()
        for storage in heads:
            self._writer.give(storage)
        return gradients

    def _count_entries(self, numbers: Iterable[int]) -> dict[int, int]:
        counts: dict[int, int] = {}
        for number in numbers:
            block = self._blocks[number]
            if block >= 0:
                counts[block] = counts.get(block, 0) + 1
        return counts

    def _touch(self, number: int, node: Node, phase: Phase, category: Category) -> None:
        block = self._blocks[number]
        if block >= 0 and block not in self._storage_of and self._sizes[block]:
            self._storage_of[block] = self._writer.take(self._sizes[block], category, node.kind, node.name, phase)

    def _read(self, node: Node, bulk: int) -> None:
        for number in node.inputs:
            self._reads[number] -= 1
            if not self._reads[number]:
                self._drop(number)
        for number in node.outputs:
            if not self._reads[number]:
                self._drop(number)
        self._engine.end(node.kind, bulk)

    def _drop(self, number: int) -> None:
        block = self._blocks[number]
        if block < 0 or self._keeps:
            return
        self._entries_in[block] -= 1
        if not self._entries_in[block] and block in self._storage_of:
            self._engine.give(self._storage_of.pop(block))


def _own_blocks(graph: BoundGraph, external: set[int]) -> list[int]:
    return [EXTERNAL if number in external else number for number in range(len(graph.entries))]


def _merged(forward: MemoryPlan, backward: MemoryPlan) -> list[int]:
    """Return the block of each entry, those of the backward numbered behind those of the forward."""
    first = len(forward.block_bytes)
    return [
        there + first if there >= 0 else here
        for here, there in zip(forward.block_of, backward.block_of, strict=True)
    ]


def _counted(length: int, numbers: Iterable[int]) -> list[int]:
    counts = [0] * length
    for number in numbers:
        counts[number] += 1
    return counts


def _added(left: list[int], right: list[int]) -> list[int]:
    return [here + there for here, there in zip(left, right, strict=True)]
