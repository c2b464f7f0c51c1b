"""Graph network: messages gathered along edges, attended to and summed by node."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    """Messages from sources to targets, weighted by attention over each target's edges."""

    def __init__(self, width: int, attention: bool) -> None:
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.score = nn.Linear(2 * width, 1) if attention else None
        self.update = nn.GRUCell(width, width)

    def forward(self, nodes: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        ends = torch.cat([nodes.index_select(0, sources), nodes[targets]], dim=1)
        messages = F.relu(self.message(ends))
        if self.score is not None:
            weights = F.leaky_relu(self.score(ends), 0.2).exp()
            total = nodes.new_zeros(len(nodes), 1).scatter_add_(0, targets.unsqueeze(1), weights)
            messages = messages * (weights / total.gather(0, targets.unsqueeze(1)))
        summed = torch.zeros_like(nodes).index_add_(0, targets, messages)
        return self.update(summed, nodes)


def build(
    batch_size: int,
    device: torch.device,
    *,
    nodes_per_graph: int = 512,
    edges_per_graph: int = 4096,
    width: int = 128,
    depth: int = 4,
    num_classes: int = 10,
    attention: bool = False,
) -> Callable[[], float]:
    """Return one NAdam step that classifies ``batch_size`` random graphs, batched into one."""
    embed = nn.Linear(32, width).to(device)
    layers = nn.ModuleList(Layer(width, attention) for _ in range(depth)).to(device)
    head = nn.Linear(width, num_classes).to(device)
    optimizer = torch.optim.NAdam([*embed.parameters(), *layers.parameters(), *head.parameters()], lr=1e-3)
    num_nodes = batch_size * nodes_per_graph
    features = torch.randn(num_nodes, 32, device=device)
    sources, targets = torch.randint(num_nodes, (2, batch_size * edges_per_graph), device=device)
    graph = torch.arange(num_nodes, device=device) // nodes_per_graph
    labels = torch.randint(num_classes, (batch_size,), device=device)

    def step() -> float:
        optimizer.zero_grad()
        nodes = embed(features)
        for layer in layers:
            nodes = layer(nodes, sources, targets)
        pooled = nodes.new_zeros(batch_size, width).index_add(0, graph, nodes) / nodes_per_graph
        loss = F.cross_entropy(head(pooled), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
