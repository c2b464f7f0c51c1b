"""What the convolutions of a bound graph ask of MXNet's temporary space."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dnnmem_tune.frontends.mxnet.bound import BoundGraph, Node
from dnnmem_tune.ir.size import Scratch
from dnnmem_tune.operators.convolution import Direction, convolution_scratch
from dnnmem_tune.operators.temp_space import shared_temporary_space
from dnnmem_tune.units import MIB

_DEFAULT_WORKSPACE_MEBIBYTES = 1024
"""``workspace`` of ``ConvolutionParam`` in ``src/operator/nn/convolution-inl.h``."""


def temporary_space_of(graph: BoundGraph) -> Scratch | None:
    """Return the size of the buffer, or nothing for a graph without convolutions."""
    convolutions = list(_workspaces(graph))
    return shared_temporary_space(convolutions) if convolutions else None


def _workspaces(graph: BoundGraph) -> Iterator[tuple[Scratch, int]]:
    by_name = {node.name: node for node in graph.nodes if node.kind == "Convolution"}
    for node in by_name.values():
        yield _workspace(graph, node, Direction.FORWARD)
    for node in graph.nodes:
        forward = by_name.get(node.name.removesuffix("_backward"))
        if node.kind == "_backward_Convolution" and forward is not None:
            for direction in (Direction.DATA_GRADIENT, Direction.FILTER_GRADIENT):
                yield _workspace(graph, forward, direction)


def _workspace(graph: BoundGraph, node: Node, direction: Direction) -> tuple[Scratch, int]:
    given, weight, output = (graph.entries[number] for number in (*node.inputs[:2], node.outputs[0]))
    num_extents = len(given.shape) - 2
    scratch = convolution_scratch(
        direction,
        input_shape=given.shape,
        weight_shape=weight.shape,
        output_shape=output.shape,
        stride=_numbers(node.attributes.get("stride", "()")) or (1,) * num_extents,
        groups=int(node.attributes.get("num_group", "1")),
        dtype="float16" if given.itemsize == 2 else "float32",
        itemsize=given.itemsize,
    )
    return scratch, int(node.attributes.get("workspace", _DEFAULT_WORKSPACE_MEBIBYTES)) * MIB


def _numbers(text: str) -> tuple[int, ...]:
    value = ast.literal_eval(text)
    return tuple(value) if isinstance(value, list | tuple) else (int(value),)
