"""Values of small tensors, kept beside the fake tensors that have none.

A trace has no data, yet programs compute *sizes* with small CPU tensors (drop-path rates
from ``torch.linspace``, the widths of a RegNet, a list of sequence lengths), and choose
kernels by small masks and positions on the device (Hugging Face models skip a mask of
ones). Every deterministic operator on small CPU tensors, and on small whole-number and
boolean device tensors, is therefore also run for real where all of its inputs are known.
Everything else has no value: what is read from it on the host is a placeholder, and is
reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

_MAX_ELEMENTS = 1 << 16
"""Larger tensors of numbers are data or weights; no program computes a size with them."""

_MAX_WHOLE_ELEMENTS = 1 << 22
"""Positions and padding masks have an element for each token of a batch: 2,048 sequences of 2,048."""

_WHOLE = frozenset({torch.bool, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})

_CONSTANTS = frozenset({torch.ops.aten.ones.default, torch.ops.aten.zeros.default, torch.ops.aten.full.default})
"""Operators whose results are known in floating point too: Hugging Face decoders make their masks as ones."""

_ATTRIBUTE = "_dnnmem_value"


class _Known:
    """A value in the attributes of a fake tensor; a copy of the tensor has a copy of the value."""

    __slots__ = ("value",)

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def __deepcopy__(self, _memo: Any) -> _Known:
        with _disable_current_modes():
            return _Known(self.value.clone())


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the real tensor behind ``tensor``, or nothing where its values are not known."""
    if not isinstance(tensor, FakeTensor):
        return tensor if tensor.device.type == "cpu" else None
    known: _Known | None = getattr(tensor, _ATTRIBUTE, None)
    if known is not None:
        return known.value
    return tensor.constant if tensor.device.type == "cpu" else None


def remember(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Keep the real tensor behind a fake one that a stand-in for an operator made."""
    setattr(tensor, _ATTRIBUTE, _Known(value))


def may_be_known(tensor: torch.Tensor) -> bool:
    """Whether values of such a tensor are kept at all."""
    if tensor.dtype in _WHOLE:
        return tensor.numel() <= _MAX_WHOLE_ELEMENTS
    return tensor.device.type == "cpu" and tensor.numel() <= _MAX_ELEMENTS


def may_follow(func: Any, output: torch.Tensor) -> bool:
    """Whether the value of what an operator returned is worth keeping."""
    return may_be_known(output) or (func in _CONSTANTS and output.numel() <= _MAX_WHOLE_ELEMENTS)


def follow(func: Callable[..., Any], args: Any, kwargs: Any, outputs: Any) -> None:
    """Run an operator on known values too, and attach the results to its fake outputs.

    Where an argument's value is not known, what the operator writes is not known either.
    """
    flat_outputs = [out for out in tree_flatten(outputs)[0] if isinstance(out, torch.Tensor)]
    if not all(may_follow(func, out) for out in flat_outputs):
        return
    leaves, layout = tree_flatten((args, kwargs))
    values = [_real(leaf) for leaf in leaves]
    unknown = any(
        isinstance(leaf, torch.Tensor) and value is None for leaf, value in zip(leaves, values, strict=True)
    )
    if unknown or torch.Tag.nondeterministic_seeded in func.tags or _is_uninitialised(func):  # type: ignore[attr-defined]
        _forget(func, args, flat_outputs)
        return
    real_args, real_kwargs = tree_unflatten(values, layout)
    try:
        with _disable_current_modes():
            real_outputs = func(*real_args, **real_kwargs)
    except (RuntimeError, NotImplementedError):  # no CPU kernel, or data that it refuses
        _forget(func, args, flat_outputs)
        return
    flat_real = [out for out in tree_flatten(real_outputs)[0] if isinstance(out, torch.Tensor)]
    for fake, real in zip(flat_outputs, flat_real, strict=False):
        if isinstance(fake, FakeTensor):
            setattr(fake, _ATTRIBUTE, _Known(real))


def _real(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return known_value(leaf)
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def _is_uninitialised(func: Any) -> bool:
    name: str = func._schema.name
    return name.startswith(("aten::empty", "aten::new_empty"))


def _forget(func: Any, args: Any, outputs: list[torch.Tensor]) -> None:
    written = list(outputs)
    if func._schema.is_mutable:
        written += [arg for arg in args if isinstance(arg, torch.Tensor)]
    for tensor in written:
        if isinstance(tensor, FakeTensor) and hasattr(tensor, _ATTRIBUTE):
            delattr(tensor, _ATTRIBUTE)
