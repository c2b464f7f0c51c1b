"""BoundGraph: the nodes of a bound symbol, forward and backward, with the shape of every entry.

An *entry* is one output of one node, numbered in the order of execution as MXNet numbers
them. The graph is what ``Executor.debug_str`` and the log of the memory planner say together:
the first has names, attributes and outputs, the second entries and shapes.

Source: ``GraphExecutor::Print`` in ``src/executor/graph_executor.cc`` and ``LogMemoryPlan`` in
``src/common/exec_utils.h`` (MXNet 1.9.1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dnnmem_tune.errors import TraceError

VARIABLE = "var"
"""Operator of a node that is an input: a weight, a state, data or the gradient of an output."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One output of one node."""

    shape: tuple[int, ...]

    itemsize: int
    """Bytes of one element."""

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.num_elements * self.itemsize


@dataclass(frozen=True, slots=True)
class Node:
    """One operator, or a variable."""

    kind: str
    """Such as ``Convolution``; ``var`` for a variable."""

    name: str

    inputs: tuple[int, ...]
    """Entries it reads."""

    outputs: tuple[int, ...]
    """Entries it writes."""

    attributes: dict[str, str]

    @property
    def is_variable(self) -> bool:
        """Whether it is no operator."""
        return self.kind == VARIABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundGraph:
    """A symbol bound to shapes."""

    nodes: tuple[Node, ...]
    """In order of execution."""

    entries: tuple[Entry, ...]

    outputs: tuple[int, ...]
    """Entries of the symbol's outputs, then those of the gradients."""

    num_forward_outputs: int

    auxiliary: frozenset[str] = frozenset()
    """Names of variables that operators update in place: moving averages."""

    total_mebibytes: int = 0
    """What MXNet says its plan takes, in whole mebibytes; 0 where there is none."""

    @property
    def num_forward_nodes(self) -> int:
        """Number of nodes up to the last that computes an output."""
        last = max(self.outputs[: self.num_forward_outputs], default=-1)
        return next((number + 1 for number, node in enumerate(self.nodes) if last in node.outputs), 0)

    def encode(self) -> dict[str, Any]:
        """Return the graph as lists, strings and numbers."""
        return {
            "nodes": [
                [node.kind, node.name, list(node.inputs), list(node.outputs), node.attributes]
                for node in self.nodes
            ],
            "entries": [[list(entry.shape), entry.itemsize] for entry in self.entries],
            "outputs": list(self.outputs),
            "num_forward_outputs": self.num_forward_outputs,
            "auxiliary": sorted(self.auxiliary),
            "total_mebibytes": self.total_mebibytes,
        }

    @classmethod
    def decode(cls, document: dict[str, Any]) -> BoundGraph:
        """Return the graph that ``encode`` wrote."""
        return cls(
            nodes=tuple(
                Node(kind, name, tuple(inputs), tuple(outputs), attributes)
                for kind, name, inputs, outputs, attributes in document["nodes"]
            ),
            entries=tuple(Entry(tuple(shape), itemsize) for shape, itemsize in document["entries"]),
            outputs=tuple(document["outputs"]),
            num_forward_outputs=document["num_forward_outputs"],
            auxiliary=frozenset(document["auxiliary"]),
            total_mebibytes=document["total_mebibytes"],
        )


_NODE = re.compile(r"node \d+ (\S+)")
_ENTRY = re.compile(r"\s*(input|output) (\d+): \[([\d,]*)\] \((\d+) KB\)")
_OUTPUT = re.compile(r"\toutput\[\d+\]=(.*)\((\d+)\)")
_TOTAL = re.compile(r"Total (\d+) MB allocated")
_ITEMSIZES = (8, 4, 2, 1)
_DEFAULT_ITEMSIZE = 4


def parse_bound(log: str, description: str, *, num_forward_outputs: int, auxiliary: Iterable[str]) -> BoundGraph:
    """Return the graph that MXNet describes.

    Args:
        log: What the planner logs with ``MXNET_MEM_PLAN_VERBOSE_LOGGING=1``.
        description: ``Executor.debug_str()``.
        num_forward_outputs: Outputs of the symbol; further ones are gradients.
        auxiliary: Names of the auxiliary states.

    Raises:
        TraceError: If the two do not describe one graph, as with a release that writes them otherwise.

    """
    kinds, inputs, outputs, entries = _parse_log(log)
    names, attributes, results = _parse_description(description)
    if len(names) != len(kinds):
        raise TraceError(
            f"MXNet's log has {len(kinds)} nodes and its description {len(names)}; this needs MXNet 1.9.1"
        )
    _number_variables(kinds, outputs)
    first_entry = {name: numbers[0] for name, numbers in zip(names, outputs, strict=True) if numbers}
    num_entries = sum(len(numbers) for numbers in outputs)
    total = _TOTAL.search(description)
    return BoundGraph(
        nodes=tuple(
            Node(kind, name, tuple(read), tuple(written), given)
            for kind, name, read, written, given in zip(kinds, names, inputs, outputs, attributes, strict=True)
        ),
        entries=tuple(entries.get(number, Entry((0,), _DEFAULT_ITEMSIZE)) for number in range(num_entries)),
        outputs=tuple(first_entry[name] + position for name, position in results),
        num_forward_outputs=num_forward_outputs,
        auxiliary=frozenset(auxiliary),
        total_mebibytes=int(total[1]) if total else 0,
    )


def _parse_log(log: str) -> tuple[list[str], list[list[int]], list[list[int]], dict[int, Entry]]:
    kinds: list[str] = []
    inputs: list[list[int]] = []
    outputs: list[list[int]] = []
    entries: dict[int, Entry] = {}
    for line in log.splitlines():
        _, found, text = line.partition("exec_utils.h:")
        text = text.partition(": ")[2] if found else ""
        if node := _NODE.match(text):
            kinds.append(node[1])
            inputs.append([])
            outputs.append([])
        elif entry := _ENTRY.match(text):
            number = int(entry[2])
            (inputs if entry[1] == "input" else outputs)[-1].append(number)
            shape = tuple(int(extent) for extent in entry[3].split(",") if extent)
            entries[number] = Entry(shape, _itemsize(math.prod(shape), int(entry[4])))
    return kinds, inputs, outputs, entries


def _itemsize(num_elements: int, kibibytes: int) -> int:
    """The log has whole kibibytes only; what is below one of them fills a page of the pool whatever its type."""
    for itemsize in _ITEMSIZES:
        if kibibytes and num_elements * itemsize // 1024 == kibibytes:
            return itemsize
    return _DEFAULT_ITEMSIZE


def _parse_description(description: str) -> tuple[list[str], list[dict[str, str]], list[tuple[str, int]]]:
    names: list[str] = []
    attributes: list[dict[str, str]] = []
    results: list[tuple[str, int]] = []
    in_attributes = False
    for line in description.splitlines():
        if output := _OUTPUT.match(line):
            results.append((output[1], int(output[2])))
        elif line.startswith(("Variable:", "Op:")):
            names.append(line.partition("Name=")[2] if line.startswith("Op:") else line.removeprefix("Variable:"))
            attributes.append({})
        elif in_attributes and line.startswith("\t"):
            key, _, value = line.strip().partition("=")
            attributes[-1][key] = value
        in_attributes = line == "Attrs:" or (in_attributes and line.startswith("\t"))
    return names, attributes, results


def _number_variables(kinds: list[str], outputs: list[list[int]]) -> None:
    """Give each variable the entry that its neighbours leave free; the log does not name it."""
    number = 0
    for kind, written in zip(kinds, outputs, strict=True):
        if kind == VARIABLE:
            written.append(number)
        if written != list(range(number, number + len(written))):
            raise TraceError(
                f"MXNet numbers the outputs of {kind} otherwise than expected; this needs MXNet 1.9.1"
            )
        number += len(written)
