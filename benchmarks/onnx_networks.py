"""Train the networks inside the ``onnx`` package in PyTorch, node by node, to check the rules for training.

``python onnx_networks.py list MODEL.onnx NODES.json`` writes a model's nodes down, where ``onnx`` is installed;
``dnnmem estimate --workload onnx_networks.py:build --set nodes=NODES.json`` traces a training step of it in PyTorch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def write_nodes(model: str, path: str) -> None:
    """Write the nodes of a model, and the shapes of its weights, as JSON."""
    from dnnmem_tune.frontends.onnx.dimensions import read_dimensions
    from dnnmem_tune.frontends.onnx.flattening import Flattener
    from dnnmem_tune.frontends.onnx.reading import read_model

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
                "attributes": {key: value for key, value in node.attributes.items() if not hasattr(value, "dtype")},
                "shape": flat.types[node.outputs[0]].shape,
            }
            for node in flat.nodes
        ],
    }
    Path(path).write_text(json.dumps(document), encoding="utf-8")


def build(batch_size: int, device: Any, nodes: str = "nodes.json", optimizer: str = "sgd") -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F

    document = json.loads(Path(nodes).read_text(encoding="utf-8"))
    frozen = {name for node in document["nodes"] if node["op"] == "BatchNormalization" for name in node["inputs"][3:]}
    last_use = {name: i for i, node in enumerate(document["nodes"]) for name in node["inputs"]}

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.names = {name: f"w{i}" for i, name in enumerate(document["weights"])}
            for name, shape in document["weights"].items():
                tensor = torch.ones(shape, device=device)
                if name in frozen:
                    self.register_buffer(self.names[name], tensor)
                else:
                    self.register_parameter(self.names[name], nn.Parameter(tensor))

        def forward(self, image: Any) -> Any:
            values = {document["input"][0]: image}
            for i, node in enumerate(document["nodes"]):
                given = [
                    getattr(self, self.names[name]) if name in self.names else values.get(name) for name in node["inputs"]
                ]
                values[node["outputs"][0]] = run(node, given)
                del given
                for name in node["inputs"]:
                    if last_use[name] == i:
                        values.pop(name, None)
            return values[document["output"]]

    def pool(node: Any, x: Any, function: Any) -> Any:
        a = node["attributes"]
        kernel, stride = a["kernel_shape"], a.get("strides", [1, 1])
        pads = a.get("pads", [0, 0, 0, 0])
        ceil = pads[0] != pads[2]
        return function(x, kernel, stride, pads[:2], ceil_mode=ceil)

    def run(node: Any, x: list[Any]) -> Any:
        a, shape = node["attributes"], [batch_size, *node["shape"][1:]]
        match node["op"]:
            case "Conv":
                pads = a.get("pads", [0, 0, 0, 0])
                return F.conv2d(*x, stride=a.get("strides", 1), padding=pads[:2], groups=a.get("group", 1))
            case "Relu":
                return F.relu(x[0])
            case "MaxPool":
                return pool(node, x[0], F.max_pool2d)
            case "AveragePool":
                return pool(node, x[0], F.avg_pool2d)
            case "GlobalAveragePool":
                return F.adaptive_avg_pool2d(x[0], 1)
            case "BatchNormalization":
                return F.batch_norm(x[0], x[3], x[4], x[1], x[2], training=True)
            case "LRN":
                return F.local_response_norm(x[0], a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0))
            case "Dropout":
                return F.dropout(x[0], a.get("ratio", 0.5))
            case "Concat":
                return torch.cat(x, a["axis"])
            case "Reshape" | "Flatten":
                return x[0].reshape(shape)
            case "Gemm":
                return F.linear(x[0], x[1] if a.get("transB") else x[1].t(), x[2])
            case "Softmax":
                return F.softmax(x[0], 1)
            case "Add" | "Sum":
                return x[0] + x[1]
            case "Mul":
                return x[0] * x[1]
            case "Identity":
                return x[0]
            case "Transpose":
                return x[0].permute(a["perm"])
        raise NotImplementedError(node["op"])

    network = Network()
    parameters = list(network.parameters())
    optimizers = {
        "sgd": lambda: torch.optim.SGD(parameters, 0.1),
        "momentum": lambda: torch.optim.SGD(parameters, 0.1, momentum=0.9),
        "adam": lambda: torch.optim.Adam(parameters),
    }
    trainer = optimizers[optimizer]()
    image = torch.zeros([batch_size, *document["input"][1][1:]], device=device)

    def step() -> None:
        trainer.zero_grad()
        network(image).mean().backward()
        trainer.step()

    return step


if __name__ == "__main__":
    write_nodes(*sys.argv[2:4])
