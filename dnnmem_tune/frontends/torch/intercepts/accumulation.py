"""How the autograd engine sums gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@intercept(aten.add.Tensor)
def accumulate_gradient(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Autograd sums gradients in place where it owns the first one alone.

    The engine adds in place unless the tensor is a subclass, which fake tensors are, or is
    used elsewhere. An addition during a backward pass outside every node is the engine's.

    Source: ``can_accumulate_inplace`` and ``accumulate`` in
    ``torch/csrc/autograd/input_buffer.cpp``, torch 2.13.
    """
    total, gradient = args[0], args[1]
    if (
        recorder.attribution.in_backward
        and not kwargs
        and torch._C._current_autograd_node() is None
        and isinstance(total, torch.Tensor)
        and not torch.is_grad_enabled()
        and _owned_alone(total)
    ):
        return aten.add_.Tensor(total, gradient)
    return func(*args, **kwargs)


def _owned_alone(tensor: torch.Tensor) -> bool:
    return False
