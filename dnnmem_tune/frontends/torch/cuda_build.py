"""Make torch dispatch and answer as its CUDA build on a machine with one GPU does.

Only ever called in a worker process, for its whole life: composite operators whose C++
body asks for CUDA or cuDNN are overridden for the dispatch key ``AutogradCUDA``, and the
Python predicates that user code and torch itself ask are answered for the device.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils as foreach

from dnnmem_tune.frontends.torch import (
    attention,
    composites,
    ctc,
    cuda_runtime,
    cudnn,
    device_guard,
    fallback,
    host_side,
    recurrent,
    refusals,
)
from dnnmem_tune.frontends.torch.fake_mode import FakeCudaMode

_kept_alive: list[torch.library.Library] = []


def install(
    *, compute_capability: tuple[int, int], total_bytes: int, num_sms: int, name: str = "fake"
) -> FakeCudaMode:
    """Turn this process's torch into one that sees a single fake CUDA device.

    Returns:
        The fake tensor mode under which user code is to be imported and run.

    Raises:
        RuntimeError: If this build of torch cannot be traced; see ``device_guard``.

    """
    device_guard.install()
    mode = FakeCudaMode(allow_non_fake_inputs=True)  # imports dynamo, which refuses replaced functions
    _override_operators(compute_capability)
    cuda_runtime.install(compute_capability, total_bytes, num_sms, name)
    fallback.install()
    host_side.install()
    refusals.install()
    recurrent.install_flattening()
    _admit_fake_tensors()
    return mode


def _override_operators(compute_capability: tuple[int, int]) -> None:
    library = torch.library.Library("aten", "IMPL")
    overrides: dict[str, Any] = {
        "scaled_dot_product_attention": functools.partial(
            attention.scaled_dot_product_attention, compute_capability
        ),
        **recurrent.overrides(),
        "batch_norm": cudnn.batch_norm,
        "linear": composites.linear,
        "one_hot": composites.one_hot,
        "group_norm": composites.group_norm,
        "ctc_loss.Tensor": ctc.ctc_loss,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Overriding a previously registered kernel"
        for operator, function in overrides.items():
            library.impl(operator, function, "AutogradCUDA")
        for operator in _CUDA_KERNELS_OF_COMPOSITE_OPERATORS:
            library.impl(operator, _never_called, "CUDA")
    _kept_alive.append(library)


_CUDA_KERNELS_OF_COMPOSITE_OPERATORS = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Operators that the CPU build decomposes since only the CUDA build has a kernel; found by comparing both."""


def _never_called(*_args: Any, **_kwargs: Any) -> Any:
    """That a kernel is registered keeps the dispatcher from decomposing the operator; fake tensors answer it."""
    raise AssertionError("a CUDA kernel was called while tracing")


def _admit_fake_tensors() -> None:
    """Where torch asks for the exact type of a tensor, a fake one is as good."""
    for module in (optimizers, foreach):
        module._foreach_supported_types.append(FakeTensor)
    # Module.to swaps parameters, which is refused for tensors with weak references; those
    # that fake tensors hold in their own memo do no harm.
    torch.utils.weakref = types.SimpleNamespace(  # type: ignore[assignment, attr-defined]
        **{**vars(weakref), "getweakrefs": lambda _object: []}
    )


def answer_for_libraries() -> None:
    """Make libraries that look for fake tensors take the path of real ones.

    transformers keeps its attention masks when it sees a fake tensor; a CUDA run looks at
    the mask and drops it where it can.
    """
    imports = sys.modules.get("transformers.utils.import_utils")
    if imports is not None:
        imports.is_fake_tensor = lambda _tensor: False  # type: ignore[attr-defined]
