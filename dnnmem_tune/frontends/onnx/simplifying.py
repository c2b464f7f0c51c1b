"""The graph that ONNX Runtime runs for inference, where it differs in memory from the one in the file.

Source:
    The rewrites of level *basic* in ``core/optimizer`` of ONNX Runtime 1.32 that change what is held:
    elimination of identities and dropout, ``conv_bn_fusion.cc``, ``conv_mul_fusion.cc``,
    ``conv_add_fusion.cc`` and ``matmul_add_fusion.cc``. Activations run in place
    otherwise, so that fusing them too changes no size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from dnnmem_tune.frontends.onnx.flat import FlatModel, Node

_DROPPED = frozenset({"Identity", "Dropout"})


def simplified(flat: FlatModel) -> FlatModel:
    """Return the model without nodes that pass a value on, and those that are fused into the one before them."""
    uses = Counter(name for node in flat.nodes for name in node.inputs if name)
    uses.update(flat.outputs)
    made_by = {output: node for node in flat.nodes for output in node.outputs}
    stands_for: dict[str, str] = {}
    nodes = []
    for node in flat.nodes:
        source = _source(node, made_by, uses, flat, stands_for)
        if source is not None and node.outputs[0] not in flat.outputs:
            stands_for[node.outputs[0]] = stands_for.get(source, source)
            continue
        nodes.append(replace(node, inputs=tuple(stands_for.get(name, name) for name in node.inputs)))
    read = {name for node in nodes for name in node.inputs} | set(flat.outputs)
    weights = [name for name in flat.weights if name in read]
    simpler = replace(flat, nodes=nodes, weights=weights)
    return replace(simpler, nodes=execution_order(simpler))


def execution_order(flat: FlatModel) -> list[Node]:
    """Return the nodes in the order in which ONNX Runtime runs them: depth first, back from the results.

    Source:
        ``GraphViewer`` and ``Graph::ReverseDFSFrom`` in ``core/graph``: a stack of the nodes without
        followers, each replaced by those that it reads; the one latest in the file is on top.

    """
    made_by = {output: index for index, node in enumerate(flat.nodes) for output in node.outputs if output}
    before = [sorted({made_by[name] for name in node.inputs if name in made_by}) for node in flat.nodes]
    followed = {earlier for needed in before for earlier in needed}
    stack = [(index, False) for index in range(len(flat.nodes)) if index not in followed]
    entered: set[int] = set()
    order: list[Node] = []
    while stack:
        index, left = stack.pop()
        if left:
            order.append(flat.nodes[index])
        elif index not in entered:
            entered.add(index)
            stack.append((index, True))
            stack.extend((earlier, False) for earlier in before[index] if earlier not in entered)
    return order


def _source(
    node: Node, made_by: dict[str, Node], uses: Counter[str], flat: FlatModel, stands_for: dict[str, str]
) -> str | None:
    """Return the value that a node passes on, if ONNX Runtime drops the node or fuses it into the one before."""
    if any(uses[output] for output in node.outputs[1:] if output):
        return None
    if node.op in _DROPPED:
        return node.inputs[0]
    given = node.inputs[0]
    if node.op == "BatchNormalization" and not node.attributes.get("training_mode"):
        return given if _ends_in(given, "Conv", made_by, uses, stands_for) else None
    if node.op in ("Mul", "Add") and node.inputs[1] in flat.weights:
        channels = flat.types[given].shape[1] if len(flat.types[given].shape) > 2 else 0
        if (
            flat.types[node.inputs[1]].num_elements == channels
            and flat.types[given] == flat.types[node.outputs[0]]
        ):
            return given if _ends_in(given, "Conv", made_by, uses, stands_for) else None
        if node.op == "Add" and len(flat.types[given].shape) == 2 and not channels:
            return given if _ends_in(given, "MatMul", made_by, uses, stands_for) else None
    return None


def _ends_in(name: str, op: str, made_by: dict[str, Node], uses: Counter[str], stands_for: dict[str, str]) -> bool:
    """Whether a value is the result of ``op`` alone, what was fused into it before included."""
    before = made_by.get(stands_for.get(name, name))
    return before is not None and before.op == op and uses[name] == 1
