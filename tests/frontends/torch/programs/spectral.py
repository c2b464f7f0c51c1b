"""Fourier transforms, forward and backward, over dimensions and layouts that take different passes and copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_REAL: dict[str, dict[str, Any]] = {
    "rfft": {"shape": [8, 128]},
    "rfft of an odd length": {"shape": [8, 127], "transform": "rfft"},
    "rfft of a middle dimension": {"shape": [128, 16], "transform": "rfft", "dim": 1},
    "rfft padded": {"shape": [8, 128], "transform": "rfft", "n": 256},
    "rfft of a transposed input": {"shape": [128, 8], "transform": "rfft", "transposed": True},
    "rfft2": {"shape": [8, 64, 64]},
    "rfft2 before channels": {"shape": [64, 64, 8], "transform": "rfft2", "dim": [1, 2]},
    "rfftn over the first two": {"shape": [16, 16], "transform": "rfftn", "dim": [0, 1]},
    "rfftn over four": {"shape": [8, 16, 16], "transform": "rfftn", "dim": [0, 1, 2, 3]},
    "fft2 of real numbers": {"shape": [8, 64, 64], "transform": "fft2"},
    "half": {"shape": [8, 128], "transform": "rfft", "dtype": "float16"},
    "evaluation": {"shape": [8, 64, 64], "transform": "rfft2", "grad": False},
}
_COMPLEX: dict[str, dict[str, Any]] = {
    "fft": {"shape": [8, 128]},
    "ifft": {"shape": [8, 128]},
    "fft of a middle dimension": {"shape": [128, 16], "transform": "fft", "dim": 1},
    "fftn over four": {"shape": [8, 16, 16], "transform": "fftn", "dim": [0, 1, 2, 3]},
    "irfft": {"shape": [8, 65]},
    "irfft2": {"shape": [8, 64, 33]},
    "irfftn over the first two": {"shape": [9, 16], "transform": "irfftn", "dim": [0, 1]},
    "irfftn over four": {"shape": [16, 16, 9], "transform": "irfftn", "dim": [0, 1, 2, 3]},
    "hfft": {"shape": [8, 65]},
}
CASES: dict[str, dict[str, Any]] = {
    name: {"transform": name, **params}
    for name, params in {
        **_REAL, **{name: {"dtype": "complex64", **params} for name, params in _COMPLEX.items()},
    }.items()
}  # fmt: skip


def build(
    batch_size: int, device: torch.device, *, transform: str, shape: list[int], dtype: str = "float32",
    transposed: bool = False, grad: bool = True, **settings: Any,
) -> Callable[[], None]:  # fmt: skip
    """Return one transform and, where asked for, its backward."""

    def step() -> None:
        inputs = torch.empty((batch_size, *shape), dtype=getattr(torch, dtype), device=device, requires_grad=grad)
        output = getattr(torch.fft, transform)(inputs.transpose(1, 2) if transposed else inputs, **settings)
        if grad:
            output.backward(torch.empty_like(output))

    return step
