"""Small bound graphs, written by hand."""

from __future__ import annotations

from dnnmem_tune.frontends.mxnet.bound import BoundGraph, Entry, Node


def classifier(batch_size: int = 8, itemsize: int = 4) -> BoundGraph:
    """Return ``SoftmaxOutput(FullyConnected(data))`` with its backward: 3 inputs, 4 classes."""
    nodes = (
        Node("var", "data", (), (0,), {}),
        Node("var", "fc_weight", (), (1,), {}),
        Node("var", "fc_bias", (), (2,), {}),
        Node("FullyConnected", "fc", (0, 1, 2), (3,), {}),
        Node("var", "label", (), (4,), {}),
        Node("SoftmaxOutput", "softmax", (3, 4), (5,), {}),
        Node("_backward_SoftmaxOutput", "softmax_backward", (5, 4), (6, 7), {}),
        Node("_backward_FullyConnected", "fc_backward", (6, 0, 1), (8, 9, 10), {}),
    )
    shapes = [
        (batch_size, 3), (4, 3), (4,), (batch_size, 4), (batch_size,), (batch_size, 4), (batch_size, 4),
        (batch_size,), (batch_size, 3), (4, 3), (4,),
    ]  # fmt: skip
    entries = tuple(Entry(shape, itemsize) for shape in shapes)
    return BoundGraph(nodes=nodes, entries=entries, outputs=(5, 9, 10), num_forward_outputs=1)
