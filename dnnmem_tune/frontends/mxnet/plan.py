"""MXNet's static memory plan: which entries of a graph share a block, and how large blocks are.

Source: ``MXPlanMemory`` in ``src/nnvm/plan_memory.cc`` of MXNet 1.9.1, with its oddities: the planner
counts four bytes an element whatever the type, and takes a block that is too small rather
than a new one, as long as it is within a factor of 16.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dnnmem_tune.frontends.mxnet.bound import BoundGraph, Node
from dnnmem_tune.frontends.mxnet.inplace import IDENTITIES, IGNORED, INPLACE

_MATCH_RANGE = 16
"""``NNVM_EXEC_MATCH_RANGE``."""

_PLANNED_ITEMSIZE = 4

UNPLANNED = -1
"""Of an entry that the plan has not reached."""

EXTERNAL = -2
"""Of an entry whose memory is not the plan's: variables, gradients of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The blocks of a graph."""

    block_of: tuple[int, ...]
    """Of each entry: its block, ``EXTERNAL`` or ``UNPLANNED``."""

    planned_bytes: tuple[int, ...]
    """Of each block, as the planner counts; their sum is what MXNet prints as allocated."""

    block_bytes: tuple[int, ...]
    """Of each block: its largest entry, which is what is requested from the pool."""


def plan_memory(
    graph: BoundGraph,
    *,
    external: Collection[int],
    ref_counts: Sequence[int],
    start_node: int = 0,
    stop_node: int | None = None,
) -> MemoryPlan:
    """Return the plan of a range of nodes.

    Args:
        graph: What is planned.
        external: Entries whose memory is not the plan's.
        ref_counts: Of each entry, how often it is read; one that is read outside the range never gets to 0.
        start_node: First node of the range.
        stop_node: First node behind the range; all by default.

    """
    planner = _Planner(graph, external, ref_counts)
    for node in graph.nodes[start_node:stop_node]:
        if not node.is_variable:
            planner.plan_node(node)
    return planner.finish()


def executor_plan(graph: BoundGraph) -> MemoryPlan:
    """Return the plan of an executor: forward and backward in one, gradients of arguments outside it."""
    external = set(graph.outputs[graph.num_forward_outputs :])
    external |= {number for node in graph.nodes if node.is_variable for number in node.outputs}
    reads = count_reads(graph, graph.outputs)
    for node in graph.nodes:
        for position in IGNORED.get(node.kind, ()):
            reads[node.inputs[position]] -= 1
    return plan_memory(graph, external=external, ref_counts=reads)


def count_reads(
    graph: BoundGraph, also: Sequence[int] = (), start_node: int = 0, stop_node: int | None = None
) -> list[int]:
    """Return how often each entry is read by a range of nodes, and by whoever reads ``also``."""
    counts = [0] * len(graph.entries)
    for node in graph.nodes[start_node:stop_node]:
        for number in node.inputs:
            counts[number] += 1
    for number in also:
        counts[number] += 1
    return counts


class _Planner:
    def __init__(self, graph: BoundGraph, external: Collection[int], ref_counts: Sequence[int]) -> None:
        self._graph = graph
        self._elements = [entry.num_elements for entry in graph.entries]
        self._block_of = [EXTERNAL if number in external else UNPLANNED for number in range(len(graph.entries))]
        self._ref_counts = ref_counts
        self._holds: list[int] = []
        """Of each block: reads to come of the entries in it."""
        self._planned_bytes: list[int] = []
        self._free: list[tuple[int, int, int]] = []
        """Free blocks: planned bytes, when it was released, block."""
        self._num_released = 0

    def plan_node(self, node: Node) -> None:
        self._share(node)
        waiting = [number for number in node.outputs if self._block_of[number] == UNPLANNED]
        for number in sorted(waiting, key=lambda number: (self._elements[number], number), reverse=True):
            block = self._request(self._elements[number] * _PLANNED_ITEMSIZE)
            self._holds[block] = self._ref_counts[number]
            self._block_of[number] = block
        ignored = IGNORED.get(node.kind, ())
        for position, number in enumerate(node.inputs):
            block = self._block_of[number]
            if block >= 0 and position not in ignored:
                self._holds[block] -= 1
                if not self._holds[block]:
                    self._release(block)
        for number in node.outputs:
            block = self._block_of[number]
            if block >= 0 and not self._holds[block]:
                self._release(block)

    def finish(self) -> MemoryPlan:
        sizes = [0] * len(self._planned_bytes)
        for number, block in enumerate(self._block_of):
            if block >= 0:
                sizes[block] = max(sizes[block], self._graph.entries[number].nbytes)
        return MemoryPlan(
            block_of=tuple(self._block_of), planned_bytes=tuple(self._planned_bytes), block_bytes=tuple(sizes)
        )

    def _share(self, node: Node) -> None:
        taken: set[int] = set()
        for position, output in INPLACE.get(node.kind, ()):
            if position >= len(node.inputs) or output >= len(node.outputs) or position in taken:
                continue
            source, target = node.inputs[position], node.outputs[output]
            block = self._block_of[source]
            if (
                block >= 0
                and self._block_of[target] == UNPLANNED
                and (self._holds[block] == 1 or node.kind in IDENTITIES)
                and self._ref_counts[target] > 0
                and self._elements[source] == self._elements[target]
                and self._graph.entries[source].itemsize == self._graph.entries[target].itemsize
            ):
                taken.add(position)
                self._block_of[target] = block
                self._holds[block] += self._ref_counts[target]

    def _request(self, nbytes: int) -> int:
        """Return the smallest free block that is large enough, else the largest of the others, else a new one."""
        begin = bisect_left(self._free, (nbytes // _MATCH_RANGE, -1, 0))
        middle = bisect_left(self._free, (nbytes, -1, 0))
        end = bisect_right(self._free, (nbytes * _MATCH_RANGE, self._num_released, 0))
        if middle < end:
            position = middle
        elif middle > begin:
            position = middle - 1
        else:
            self._planned_bytes.append(nbytes)
            self._holds.append(0)
            return len(self._planned_bytes) - 1
        block = self._free.pop(position)[2]
        self._planned_bytes[block] = max(self._planned_bytes[block], nbytes)
        return block

    def _release(self, block: int) -> None:
        insort(self._free, (self._planned_bytes[block], self._num_released, block))
        self._num_released += 1
