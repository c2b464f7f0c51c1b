"""Operators without a shape rule are run for real, on zeros on the CPU, to learn the shapes of their results.

What such an operator takes inside a call is not known, so it is named in the coverage.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only, tree_unflatten

unknown_operators: set[str] = set()
"""Schema names of the operators that were run this way; later calls may be answered by a cache."""


def install() -> None:
    """Replace torch's own fallback, which needs a CUDA device for tensors that are on one."""
    fake_tensor.run_fallback_kernel = _run_on_cpu  # type: ignore[assignment]


def _run_on_cpu(mode: Any, func: Any, flat_args: Any, args_spec: Any, no_kernel: RuntimeError) -> Any:
    if torch.Tag.inplace_view in func.tags:
        raise no_kernel
    originals: dict[int, FakeTensor] = {}
    devices: set[torch.device] = set()

    def to_real(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            devices.add(leaf)
            return torch.device("cpu")
        if not isinstance(leaf, FakeTensor):
            return leaf
        devices.add(leaf.fake_device)
        real = torch.zeros(tuple(leaf.shape), dtype=leaf.dtype)
        originals[id(real)] = leaf
        return real

    with _disable_current_modes():
        real_args = [to_real(leaf) for leaf in flat_args]
        args, kwargs = tree_unflatten(real_args, args_spec)
        try:
            outputs = func(*args, **kwargs)
        except (NotImplementedError, RuntimeError):
            raise no_kernel from None
    device = next((device for device in devices if device.type == "cuda"), torch.device("cpu"))
    unknown_operators.add(func._schema.name)

    def to_fake(real: torch.Tensor) -> torch.Tensor:
        original = originals.get(id(real))
        if original is not None:
            return original
        return torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=device)

    with mode:
        return tree_map_only(torch.Tensor, to_fake, outputs)
