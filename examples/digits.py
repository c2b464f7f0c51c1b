"""A small network on scikit-learn's digits: the training that the search examples share.

``build`` is the workload whose memory is estimated and ``train`` is the real thing on a CPU; both
make the same network, so that an estimate and a run agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from sklearn.datasets import load_digits
from torch import nn

GPU = "1GiB"
"""A card that is too small for the larger half of the search space."""


def make_network(width: int, depth: int) -> nn.Sequential:
    """Return a network of ``depth`` hidden layers for images of 8 by 8."""
    layers: list[nn.Module] = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def make_optimizer(network: nn.Module, optimizer: str, lr: float) -> torch.optim.Optimizer:
    """Return Adam, which keeps two numbers for each weight, or plain SGD, which keeps none."""
    if optimizer == "adam":
        return torch.optim.Adam(network.parameters(), lr=lr)
    return torch.optim.SGD(network.parameters(), lr=lr)


def build(
    batch_size: int, device: torch.device, *, width: int, depth: int, optimizer: str, lr: float
) -> Callable[[], None]:
    """Return one training step, as ``dnnmem_tune`` takes it."""
    network = make_network(width, depth).to(device)
    updates = make_optimizer(network, optimizer, lr)
    images = torch.rand(batch_size, 64, device=device)
    labels = torch.randint(0, 10, (batch_size,), device=device)

    def step() -> None:
        updates.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        updates.step()

    return step


def train(
    batch_size: int, *, width: int, depth: int, optimizer: str, lr: float, epochs: int = 2
) -> Iterator[float]:
    """Train on a CPU.

    Yields:
        The error rate on held-out digits after each epoch, from 0 to 1.

    """
    torch.manual_seed(0)
    torch.set_num_threads(1)  # trials run side by side
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 4 == 0
    network = make_network(width, depth)
    updates = make_optimizer(network, optimizer, lr)
    for _ in range(epochs):
        for batch in torch.nonzero(~held_out).flatten()[torch.randperm(int((~held_out).sum()))].split(batch_size):
            updates.zero_grad()
            nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            updates.step()
        with torch.no_grad():
            wrong = network(images[held_out]).argmax(1) != labels[held_out]
        yield float(wrong.float().mean())
