"""Keep weights that are initialised on the CPU from costing time and memory.

Random numbers in a large tensor change nothing of what a GPU allocates. Left alone, its
pages are never touched, so that a model of many gigabytes takes none on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_SMALL = 4096
"""Elements; smaller tensors are filled, since programs look at small numbers."""

_IN_PLACE = ("normal_", "uniform_", "exponential_", "trunc_normal_", "log_normal_", "cauchy_")


def skip_large_random_fills() -> None:
    """Replace random fills of large CPU tensors by nothing, in this process."""
    for name in _IN_PLACE:
        if hasattr(torch.Tensor, name):
            setattr(torch.Tensor, name, _skipping(getattr(torch.Tensor, name)))
    torch.nn.init.trunc_normal_ = _skipping(torch.nn.init.trunc_normal_)


def _skipping(fill: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def fill_if_small(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if tensor.device.type == "cpu" and tensor.numel() > _SMALL:
            return tensor
        return fill(tensor, *args, **kwargs)

    return fill_if_small
