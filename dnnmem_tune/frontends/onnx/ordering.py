"""The order of a graph's nodes, and what a node with bodies reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dnnmem_tune.errors import WorkloadError


def ordered(nodes: Sequence[Any], scope: Mapping[str, str], where: str) -> list[Any]:
    """Return nodes so that each comes after what it reads; the file's own order where that does.

    Raises:
        WorkloadError: If there is no such order.

    """
    made_in = {output for node in nodes for output in node.output if output}
    known = set(scope)
    result: list[Any] = []
    waiting = list(nodes)
    while waiting:
        left = []
        for node in waiting:
            if any(given in made_in and given not in known for given in _reads(node)):
                left.append(node)
                continue
            known.update(node.output)
            result.append(node)
        if len(left) == len(waiting):
            node = left[0]
            name = node.name or node.output[0]
            raise WorkloadError(f"{where} is cyclic: node {name!r} ({node.op_type}) waits for its own result")
        waiting = left
    return result


def _reads(node: Any) -> list[str]:
    """Return what a node reads, what its bodies read from outside included."""
    names = list(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            own = {value.name for value in attribute.g.input} | {tensor.name for tensor in attribute.g.initializer}
            own |= {output for child in attribute.g.node for output in child.output}
            inside = (name for child in attribute.g.node for name in _reads(child))
            names.extend(name for name in [*inside, *(v.name for v in attribute.g.output)] if name not in own)
    return names
