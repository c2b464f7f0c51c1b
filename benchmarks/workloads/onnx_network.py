"""Train an ONNX model in PyTorch, node by node: what the ONNX front-end's rules for training are checked against.

``dnnmem estimate --workload onnx_network.py:build --set nodes=NODES.json`` traces it; ``onnx_nodes.py``
makes the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Node = dict[str, Any]


def _pool(node: Node, image: Tensor, function: Callable[..., Tensor]) -> Tensor:
    attributes = node["attributes"]
    kernel, stride = attributes["kernel_shape"], attributes.get("strides", [1, 1])
    top, left, bottom, right = attributes.get("pads", [0, 0, 0, 0])
    floor = (image.shape[2] + 2 * top - kernel[0]) // stride[0] + 1
    if top != bottom and stride[0] == 1:
        return function(F.pad(image, [left, right, top, bottom]), kernel, stride)
    return function(image, kernel, stride, [top, left], ceil_mode=floor != node["shape"][2])


def _conv(node: Node, x: list[Tensor]) -> Tensor:
    attributes = node["attributes"]
    padding = attributes.get("pads", [0, 0, 0, 0])[:2]
    return F.conv2d(*x, stride=attributes.get("strides", 1), padding=padding, groups=attributes.get("group", 1))


def _lrn(node: Node, x: list[Tensor]) -> Tensor:
    a = node["attributes"]
    return F.local_response_norm(x[0], a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0))


def _gemm(node: Node, x: list[Tensor]) -> Tensor:
    return F.linear(x[0], x[1] if node["attributes"].get("transB") else x[1].t(), x[2])


def _reshape(node: Node, x: list[Tensor]) -> Tensor:
    return x[0].reshape([-1, *node["shape"][1:]])


OPERATORS: dict[str, Callable[[Node, list[Tensor]], Tensor]] = {
    "Add": lambda _, x: x[0] + x[1],
    "AveragePool": lambda node, x: _pool(node, x[0], F.avg_pool2d),
    "BatchNormalization": lambda _, x: F.batch_norm(x[0], x[3], x[4], x[1], x[2], training=True),
    "Concat": lambda node, x: torch.cat(x, node["attributes"]["axis"]),
    "Conv": _conv,
    "Dropout": lambda node, x: F.dropout(x[0], node["attributes"].get("ratio", 0.5)),
    "Flatten": _reshape,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda _, x: F.adaptive_avg_pool2d(x[0], 1),
    "LRN": _lrn,
    "MaxPool": lambda node, x: _pool(node, x[0], F.max_pool2d),
    "Mul": lambda _, x: x[0] * x[1],
    "Relu": lambda _, x: F.relu(x[0]),
    "Reshape": _reshape,
    "Softmax": lambda _, x: F.softmax(x[0], 1),
    "Sum": lambda _, x: x[0] + x[1],
}


class Network(nn.Module):
    """The nodes of a model, run one after the other; a value is dropped after its last use."""

    def __init__(self, document: dict[str, Any], device: Any) -> None:
        super().__init__()
        self.document = document
        self.names = {name: f"weight_{i}" for i, name in enumerate(document["weights"])}
        nodes = document["nodes"]
        statistics = {name for node in nodes if node["op"] == "BatchNormalization" for name in node["inputs"][3:]}
        for name, shape in document["weights"].items():
            tensor = torch.ones(shape, device=device)
            if name in statistics:
                self.register_buffer(self.names[name], tensor)
            else:
                self.register_parameter(self.names[name], nn.Parameter(tensor))
        self.last_use = {name: i for i, node in enumerate(nodes) for name in node["inputs"]}

    def forward(self, image: Tensor) -> Tensor:
        values = {self.document["input"][0]: image}
        for i, node in enumerate(self.document["nodes"]):
            known = [name for name in node["inputs"] if name in self.names or name in values]
            given = [getattr(self, self.names[name]) if name in self.names else values[name] for name in known]
            values[node["outputs"][0]] = OPERATORS[node["op"]](node, given)
            del given
            for name in node["inputs"]:
                if self.last_use[name] == i:
                    values.pop(name, None)
        return values[self.document["output"]]


def build(batch_size: int, device: Any, nodes: str = "nodes.json", optimizer: str = "sgd") -> Callable[[], None]:
    document = json.loads(Path(nodes).read_text(encoding="utf-8"))
    network = Network(document, device)
    parameters = list(network.parameters())
    trainer = torch.optim.Adam(parameters) if optimizer == "adam" else torch.optim.SGD(parameters, 0.1)
    image = torch.zeros([batch_size, *document["input"][1][1:]], device=device)

    def step() -> None:
        trainer.zero_grad()
        network(image).mean().backward()
        trainer.step()

    return step
