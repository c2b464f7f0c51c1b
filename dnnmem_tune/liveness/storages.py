"""Which tensors of a step share a storage, and when each storage is taken and given back.

A storage is taken when its first tensor is written and given back when the last reader of
any of its tensors has run. An operator's inputs are held until it has run, so inputs and
outputs overlap unless an output takes an input's storage over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dnnmem_tune.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Take:
    """A storage is requested."""

    tensor: int
    """The tensor that owns it."""

    operation: int


@dataclass(frozen=True, slots=True)
class Give:
    """A storage is given back."""

    tensor: int
    """The tensor that owned it."""


@dataclass(frozen=True, slots=True)
class Work:
    """A workspace is requested and, when the operator ends, given back."""

    operation: int
    workspace: int
    """Position in ``GraphOperation.workspaces``."""

    begins: bool


Act = Take | Give | Work


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What one step does with memory."""

    owner: tuple[int | None, ...]
    """For each tensor the one whose storage it lies in, itself often; none where it has no bytes."""

    acts: tuple[Act, ...]
    """In order. Storages of resident tensors are neither taken nor given."""

    left: tuple[int, ...]
    """Owners of storages that are still there when the last operator has run: the results'."""


def plan_storages(graph: Graph, order: Sequence[int], *, forwarding: bool = True) -> StepPlan:
    """Return how a step runs in memory when its operators run in ``order``.

    Args:
        graph: The step.
        order: Numbers of all its operators, each after those it needs.
        forwarding: Whether outputs take over inputs' storages where they may.

    """
    return _Planner(graph, forwarding).plan(order)


class _Planner:
    def __init__(self, graph: Graph, forwarding: bool) -> None:
        self._graph = graph
        self._forwarding = forwarding
        self._owner: list[int | None] = [None] * len(graph.tensors)
        self._acts: list[Act] = []
        self._readers = [0] * len(graph.tensors)
        """Of each tensor: reads to come, the caller's among them."""
        self._holds: dict[int, int] = {}
        """Owner of a storage -> reads to come of all tensors in it."""
        for operation in graph.operations:
            for index in operation.inputs:
                self._readers[index] += 1
        for index in graph.results:
            self._readers[index] += 1

    def plan(self, order: Sequence[int]) -> StepPlan:
        graph = self._graph
        for index, tensor in enumerate(graph.tensors):
            if tensor.resident:
                self._owner[index] = self._resident_owner(index)
        for number in order:
            self._run(number)
        return StepPlan(owner=tuple(self._owner), acts=tuple(self._acts), left=tuple(self._holds))

    def _run(self, number: int) -> None:
        operation = self._graph.operations[number]
        for position, index in enumerate(operation.outputs):
            self._place(number, position, index)
        for position in range(len(operation.workspaces)):
            self._acts.append(Work(number, position, begins=True))
        for position in range(len(operation.workspaces)):
            self._acts.append(Work(number, position, begins=False))
        for index in operation.inputs:
            self._release(self._owner[index], 1)
        for index in operation.outputs:
            self._release(self._owner[index], 0)

    def _place(self, number: int, position: int, index: int) -> None:
        owner = self._shared(number, position, index)
        if owner is None and self._graph.tensors[index].alias_of is None and self._has_bytes(index):
            owner = index
            self._acts.append(Take(index, number))
            self._holds[index] = 0
        self._owner[index] = owner
        if owner in self._holds:
            self._holds[owner] += self._readers[index]

    def _shared(self, number: int, position: int, index: int) -> int | None:
        """Return the owner of the storage that an output shares or takes over, if any."""
        other = self._graph.tensors[index].alias_of
        if other is not None:
            return self._owner[other]
        if not self._forwarding or not self._has_bytes(index):
            return None
        operation = self._graph.operations[number]
        placed = {self._owner[earlier] for earlier in operation.outputs[:position]}
        for sibling in operation.outputs:
            shared = self._graph.tensors[sibling].alias_of
            if shared is not None:  # what another output still shows must not be written over
                placed.add(self._owner[shared])
        for output, given in operation.forwards:
            owner = self._owner[operation.inputs[given]]
            if output != position or owner is None or owner in placed or self._holds.get(owner) != 1:
                continue
            if self._graph.tensors[owner].size == self._graph.tensors[index].size:
                return owner
        return None

    def _resident_owner(self, index: int) -> int | None:
        while (other := self._graph.tensors[index].alias_of) is not None:
            index = other
        return index if self._has_bytes(index) else None

    def _has_bytes(self, index: int) -> bool:
        size = self._graph.tensors[index].size
        return bool(size.constant or size.linear or size.quadratic)

    def _release(self, owner: int | None, reads: int) -> None:
        if owner is None or owner not in self._holds:
            return
        self._holds[owner] -= reads
        if not self._holds[owner]:
            del self._holds[owner]
            self._acts.append(Give(owner))
