"""From a graph to the trace of a whole job: what is resident, then some steps, all alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dnnmem_tune.ir.graph import Graph
from dnnmem_tune.ir.trace import Category, Mark, MemoryTrace, Operation, Phase, Storage
from dnnmem_tune.liveness.storages import Give, StepPlan, Take, Work, plan_storages


def lower(graph: Graph, order: Sequence[int], *, num_steps: int, forwarding: bool = True) -> MemoryTrace:
    """Return the allocations and frees of a job that runs ``graph`` again and again.

    Resident tensors are taken in the order of ``graph.tensors`` and never freed; results are
    freed when the next step has ended, or never in the last one, since the caller still holds
    what the previous step returned.

    Args:
        graph: One step.
        order: Numbers of its operators as they run; see ``dnnmem_tune.liveness.schedule``.
        num_steps: Steps to run, at least 1; the second shows what the first leaves to the allocator.
        forwarding: Whether outputs take over inputs' storages where they may.

    Raises:
        ValueError: If the graph is inconsistent, or ``num_steps`` is below 1.

    """
    if num_steps < 1:
        raise ValueError(f"lower: a job has at least one step, got {num_steps}")
    graph.check()
    return _Writer(graph, plan_storages(graph, order, forwarding=forwarding)).write(order, num_steps)


class _Writer:
    def __init__(self, graph: Graph, plan: StepPlan) -> None:
        self._graph = graph
        self._plan = plan
        self._storages: list[Storage] = []
        self._operations: list[Operation] = []
        self._events: list[int] = []
        self._marks: list[Mark] = []

    def write(self, order: Sequence[int], num_steps: int) -> MemoryTrace:
        self._build()
        held: list[int] = []
        for step in range(num_steps):
            left = self._step(order, step)
            self._events += [~storage for storage in held]
            held = left
            self._marks.append(Mark(f"step {step}", len(self._events)))
        graph = self._graph
        trace = MemoryTrace(
            storages=tuple(self._storages),
            operations=tuple(self._operations),
            events=tuple(self._events),
            marks=tuple(self._marks),
            coverage=replace(graph.coverage, num_operations=len(self._operations)),
            framework=graph.framework,
            recorder=graph.recorder,
            batch_sizes=(graph.batch_size,) if graph.batch_size else (),
        )
        trace.check()
        return trace

    def _build(self) -> None:
        for index, tensor in enumerate(self._graph.tensors):
            if tensor.resident and self._plan.owner[index] == index:
                self._operations.append(Operation(tensor.name, tensor.module, Phase.BUILD, -1))
                number = len(self._operations) - 1
                around = [
                    self._request(Storage(nbytes, Category.TEMPORARY, number)) for nbytes in tensor.made_with
                ]
                self._request(Storage(tensor.size, tensor.category, number))
                self._events += [~storage for storage in around]
        self._marks.append(Mark("build", len(self._events)))

    def _step(self, order: Sequence[int], step: int) -> list[int]:
        graph = self._graph
        first = len(self._operations)
        place = {number: first + position for position, number in enumerate(order)}
        for number in order:
            operation = graph.operations[number]
            self._operations.append(Operation(operation.kind, operation.module, operation.phase, step))
        storage_of: dict[int, int] = {}
        workspaces: dict[tuple[int, int], int] = {}
        for act in self._plan.acts:
            match act:
                case Take(tensor, number):
                    value = graph.tensors[tensor]
                    storage_of[tensor] = self._request(Storage(value.size, value.category, place[number]))
                case Give(tensor):
                    self._events.append(~storage_of.pop(tensor))
                case Work(number, position, begins=True):
                    workspace = graph.operations[number].workspaces[position]
                    workspaces[number, position] = self._request(
                        Storage(workspace.size, Category.WORKSPACE, place[number], workspace.optional)
                    )
                case Work(number, position, begins=False):
                    self._events.append(~workspaces.pop((number, position)))
        return list(storage_of.values())

    def _request(self, storage: Storage) -> int:
        self._storages.append(storage)
        self._events.append(len(self._storages) - 1)
        return len(self._storages) - 1
