"""A workload that misbehaves in the way it is asked to; run only inside a worker process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch


def build(batch_size: int, device: torch.device, how: str = "") -> Callable[[], object]:
    """Return a step that does what ``how`` says."""
    model = torch.nn.Linear(16, 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        optimizer.zero_grad()
        model(torch.randn(batch_size, 16, device=device)).sum().backward()
        optimizer.step()

    def step() -> None:
        MISDEEDS[how]()
        train()

    if how == "no step":
        return None  # type: ignore[return-value]
    return step


def _raise() -> None:
    raise ValueError("the images are\nall grey")


def _print() -> None:
    for _ in range(20_000):
        print('{"results": [{"trace": {}}]}')
    print("the last words", file=sys.stderr)


def _fork() -> None:
    if os.fork() == 0:
        time.sleep(0.1)


def _read() -> None:
    assert sys.stdin.read() == ""


def _leave() -> None:
    sys.exit(7)


def _loop() -> None:
    while True:
        pass


def _grow() -> None:
    kept: list[Any] = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20) * 64))


def _grow_at_once() -> None:
    bytearray(1 << 40)


def _crash() -> None:
    os.kill(os.getpid(), 11)


def _compile() -> None:
    torch.compile(torch.nn.Linear(2, 2))


MISDEEDS: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "raise": _raise,
    "print": _print,
    "fork": _fork,
    "read": _read,
    "leave": _leave,
    "loop": _loop,
    "grow": _grow,
    "grow at once": _grow_at_once,
    "crash": _crash,
    "compile": _compile,
}
