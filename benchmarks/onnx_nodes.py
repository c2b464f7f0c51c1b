"""Write the nodes of an ONNX model down for ``workloads/onnx_network.py``, where ``onnx`` is installed.

``python onnx_nodes.py MODEL.onnx NODES.json``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dnnmem_tune.frontends.onnx.dimensions import read_dimensions
from dnnmem_tune.frontends.onnx.flattening import Flattener
from dnnmem_tune.frontends.onnx.reading import read_model


def write_nodes(model: str, path: str) -> None:
    """Write the nodes of a model, and the shapes of its weights, as JSON."""
    proto = read_model(Path(model), memory_limit=8 << 30)
    dimensions = read_dimensions(proto)
    flat = Flattener(proto, dimensions.bind(2, {}), batch=(2, dimensions.fixed_batch)).flatten()
    document = {
        "weights": {name: flat.types[name].shape for name in flat.weights if flat.types[name].is_float},
        "input": [flat.inputs[0], flat.types[flat.inputs[0]].shape],
        "output": flat.outputs[0],
        "nodes": [
            {
                "op": node.op,
                "inputs": node.inputs,
                "outputs": node.outputs,
                "attributes": {
                    key: value for key, value in node.attributes.items() if not hasattr(value, "dtype")
                },
                "shape": flat.types[node.outputs[0]].shape,
            }
            for node in flat.nodes
        ],
    }
    Path(path).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    write_nodes(*sys.argv[1:3])
