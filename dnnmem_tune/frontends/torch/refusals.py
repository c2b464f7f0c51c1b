"""What a trace on fake tensors cannot stand for: refused by name, where it is used.

A wrong number would be worse than none. Each message says what to do instead.
"""

from __future__ import annotations

from typing import Any

import torch

from dnnmem_tune.errors import UnsupportedError
from dnnmem_tune.frontends.torch.user_frames import user_line

_DISTRIBUTED = (
    "its buckets and communication are not modelled on fake tensors; estimate the step of one process without it "
    "(DistributedDataParallel adds a copy of the gradients), or use the emulated recorder"
)

_GRAPHS = "CUDA graphs are not modelled (a capture has a memory pool of its own); estimate the eager step"


def install() -> None:
    """Replace what is not modelled by functions that say so."""
    compiled = _refusal(
        "torch.compile is not modelled, since a compiled step allocates otherwise than an eager one; "
        "estimate the eager step (leave torch.compile out)"
    )
    graphs = _refusal(_GRAPHS)
    parallel = _refusal(f"DistributedDataParallel: {_DISTRIBUTED}")
    refused: list[tuple[Any, str, Any]] = [
        (torch, "compile", compiled),
        (torch.nn.Module, "compile", compiled),
        (
            torch.cuda,
            "CUDAGraph",
            type("CUDAGraph", (), {"__init__": graphs}),
        ),  # a type, since annotations name it
        (torch.cuda, "graph", graphs),
        (torch.cuda, "make_graphed_callables", graphs),
        (torch.nn.parallel.DistributedDataParallel, "__init__", parallel),
        (torch.distributed, "init_process_group", _refusal(f"torch.distributed: {_DISTRIBUTED}")),
        (
            torch.nn.modules.lazy.LazyModuleMixin,
            "__init__",
            _refusal("lazy modules cannot be built on fake tensors; give the layer its input size"),
        ),
    ]
    for owner, name, refusal in refused:
        setattr(owner, name, refusal)


def _refusal(reason: str) -> Any:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise UnsupportedError(f"{user_line(2)}: {reason}")

    return refuse
