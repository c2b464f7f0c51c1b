"""Orders in which executors run the operators of a graph."""

from __future__ import annotations

from collections import deque

from dnnmem_tune.ir.graph import Graph


def first_ready_first(graph: Graph) -> tuple[int, ...]:
    """Return the order of an executor with one queue: operators run in the order in which they became ready.

    Raises:
        ValueError: If operators wait for each other.

    Source:
        ``ExecutorState::Process`` in ``tensorflow/core/common_runtime/executor.cc`` (2.21): ready
        nodes whose kernels are not expensive, which on a GPU are all, go to the thread's own queue.

    """
    waits_for, followers = _dependencies(graph)
    ready = deque(number for number, count in enumerate(waits_for) if not count)
    order: list[int] = []
    while ready:
        number = ready.popleft()
        order.append(number)
        for follower in followers[number]:
            waits_for[follower] -= 1
            if not waits_for[follower]:
                ready.append(follower)
    if len(order) < len(graph.operations):
        stuck = next(number for number, count in enumerate(waits_for) if count)
        raise ValueError(f"operator {stuck} ({graph.operations[stuck].kind}) is part of a cycle")
    return tuple(order)


def as_written(graph: Graph) -> tuple[int, ...]:
    """Return the order in which the graph lists its operators.

    Raises:
        ValueError: If an operator is listed before one that it needs.

    """
    _, followers = _dependencies(graph)
    for number, later in enumerate(followers):
        for follower in later:
            if follower <= number:
                raise ValueError(f"operator {follower} is listed before operator {number}, which it needs")
    return tuple(range(len(graph.operations)))


def _dependencies(graph: Graph) -> tuple[list[int], list[list[int]]]:
    """Return how many edges lead to each operator, and where the edges from each lead."""
    writer = {index: number for number, operation in enumerate(graph.operations) for index in operation.outputs}
    waits_for = [0] * len(graph.operations)
    followers: list[list[int]] = [[] for _ in graph.operations]
    for number, operation in enumerate(graph.operations):
        needed = [writer[index] for index in operation.inputs if index in writer]
        for other in (*needed, *operation.after):
            waits_for[number] += 1
            followers[other].append(number)
    return waits_for, followers
