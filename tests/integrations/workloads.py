"""Workloads of the end-to-end tests; traced in a worker process, never imported by a test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import torch
from torch import nn


def network(
    batch_size: int,
    device: torch.device,
    *,
    width: int = 64,
    depth: int = 2,
    lr: float = 1e-3,
    dropout: float = 0.1,
    optimizer: str = "adam",
) -> Callable[[], None]:
    """Return a step of a small network. Odd widths raise, and a depth of 99 kills its process."""
    if width % 2:
        raise ValueError("the width must be even")
    if depth == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    layers: list[nn.Module] = [nn.Linear(32, width)]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout)]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(device)
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]
    updates = kind(model.parameters(), lr=lr)
    inputs = torch.rand(batch_size, 32, device=device)
    labels = torch.randint(0, 10, (batch_size,), device=device)

    def step() -> None:
        updates.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        updates.step()

    return step


def repeated_layer(batch_size: int, device: torch.device, *, times: int = 100) -> Callable[[], None]:
    """Return the forward pass of https://github.com/TylerYep/torchinfo/issues/144."""
    layer = nn.Linear(1024, 1024).to(device)
    inputs = torch.rand(batch_size, 1024, device=device)

    def step() -> None:
        outputs = inputs
        for _ in range(times):
            outputs = layer(outputs)

    return step


def adamw_step(batch_size: int, device: torch.device, *, update: bool = True) -> Callable[[], None]:
    """Return a step of 32,111,170 weights, those of https://github.com/roboflow/rf-detr/pull/1342."""
    weights = [nn.Parameter(torch.zeros(1_000_000, device=device)) for _ in range(32)]
    weights.append(nn.Parameter(torch.zeros(111_170, device=device)))
    updates = torch.optim.AdamW(weights, lr=1e-4)
    kept = torch.zeros(batch_size, 14_400_000, device=device)  # 57.6 MB of input and feature maps

    def step() -> None:
        updates.zero_grad()
        loss = sum(weight.sum() for weight in weights) + kept[0, 0]
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        if update:
            updates.step()

    return step
