"""What a workload does on the host: data loaders, saved files, values read into Python and numpy.

None of it takes GPU memory. It must work on fake tensors, without further processes, and
without touching the user's files.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.data
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from dnnmem_tune.frontends.torch import cuda_runtime, values

_original_tolist = torch.Tensor.tolist
_original_numpy = torch.Tensor.numpy
_original_loader = torch.utils.data.DataLoader.__init__


def install() -> None:
    """Make the host side of a training step work on fake tensors."""
    replacements: list[tuple[Any, str, Any]] = [
        (torch.Tensor, "tolist", _tolist),
        (torch.Tensor, "numpy", _numpy),
        (torch.utils.data.DataLoader, "__init__", _load_in_this_process),
        (torch, "save", _keep_files),
        (torch.nn.DataParallel, "forward", _forward_on_one_device),
        (torch.jit, "script", _leave_eager),
    ]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)


def _tolist(tensor: torch.Tensor) -> Any:
    if not isinstance(tensor, FakeTensor):
        return _original_tolist(tensor)
    value = values.known_value(tensor)
    if value is not None:
        return _original_tolist(value)
    if tensor.dim() == 0:
        return tensor.item()
    return [_tolist(row) for row in tensor.unbind()]


def _numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
    if not isinstance(tensor, FakeTensor):
        return _original_numpy(tensor, force=force)
    value = values.known_value(tensor)
    if value is None:
        with _disable_current_modes():
            value = torch.zeros(tuple(tensor.shape), dtype=tensor.dtype)
    return _original_numpy(value, force=force)


def _load_in_this_process(loader: Any, *args: Any, **kwargs: Any) -> None:
    """Workers would have to send fake tensors between processes; they take no GPU memory either way."""
    if len(args) > 5:
        args = (*args[:5], 0, *args[6:])
    else:
        kwargs["num_workers"] = 0
    for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "pin_memory"):
        kwargs.pop(name, None)
    _original_loader(loader, *args[:7], **kwargs)


def _keep_files(*_args: Any, **_kwargs: Any) -> None:
    """A trace has no weights worth keeping, and must not write over those of a real run."""
    cuda_runtime.notes.append("torch.save wrote nothing: a trace has no weights")


def _forward_on_one_device(parallel: Any, *inputs: Any, **kwargs: Any) -> Any:
    """``DataParallel`` on a machine with one GPU calls its module, and moves what is not there yet."""
    from torch.utils._pytree import tree_map_only

    move = lambda tensor: tensor.to("cuda")  # noqa: E731
    inputs, kwargs = tree_map_only(torch.Tensor, move, (inputs, kwargs))
    return parallel.module(*inputs, **kwargs)


def _leave_eager(obj: Any, *_args: Any, **_kwargs: Any) -> Any:
    cuda_runtime.notes.append(
        "torch.jit.script was left out: the step is traced eagerly, and a fused one may take less"
    )
    return obj
