"""How the autograd engine sums gradients.

The engine adds a gradient to the one it already holds *in place* if it holds that one alone.
Fake tensors are subclasses, for which it always adds out of place, so the decision is
taken here as it would be for a plain tensor.

Source: ``can_accumulate_inplace`` and ``accumulate`` in
``torch/csrc/autograd/input_buffer.cpp``, torch 2.13.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten

_USES_WHEN_ALONE = 4
"""C++ references to a tensor in a dispatch mode when the engine's buffer holds it alone: the buffer's
own, and those of the call that is being dispatched."""

_STORAGE_USES_WHEN_ALONE = 2
"""References to its storage: the tensor's, and that of the Python object of the storage."""


@intercept(aten.add.Tensor)
def accumulate_gradient(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Add in place where the engine would."""
    if (
        recorder.attribution.in_backward
        and not kwargs
        and not torch.is_grad_enabled()
        and _called_by_engine(sys._getframe(1))
        and _held_alone(args[0])
    ):
        return aten.add_.Tensor(*args)
    return func(*args, **kwargs)


def _called_by_engine(frame: FrameType) -> bool:
    """No Python code stands between the engine and the dispatch of this operator.

    The engine's device thread has no Python frames below the dispatch; a backward pass
    inside another one has those of the call that started it.
    """
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename.endswith(("/torch/_compile.py", "/eval_frame.py")):
        caller = caller.f_back
    return caller is None or caller.f_code.co_name == "_engine_run_backward"


def _held_alone(tensor: Any) -> bool:
    storage = tensor.untyped_storage()
    return bool(
        tensor._use_count() <= _USES_WHEN_ALONE
        and torch._C._storage_Use_Count(storage._cdata) <= _STORAGE_USES_WHEN_ALONE
        and torch.ops.aten.is_non_overlapping_and_dense(tensor)
    )
