"""Make torch dispatch and answer as its CUDA build on a machine with one GPU does.

Only ever called in a worker process, for its whole life: composite operators whose C++
body asks for CUDA or cuDNN are overridden for the dispatch key ``AutogradCUDA``, and the
Python predicates that user code and torch itself ask are answered for the device.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import warnings
import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils as foreach

from dnnmem_tune.errors import UnsupportedError
from dnnmem_tune.frontends.torch import attention, cudnn, device_guard, values
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
    _answer_for_device(compute_capability, total_bytes, num_sms, name)
    _admit_fake_tensors()
    _refuse_what_is_not_modelled()
    return mode


def _override_operators(compute_capability: tuple[int, int]) -> None:
    library = torch.library.Library("aten", "IMPL")
    overrides: dict[str, Any] = {
        "scaled_dot_product_attention": functools.partial(
            attention.scaled_dot_product_attention, compute_capability
        ),
        "lstm.input": cudnn.lstm,
        "gru.input": cudnn.gru,
        "batch_norm": cudnn.batch_norm,
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


def _answer_for_device(compute_capability: tuple[int, int], total_bytes: int, num_sms: int, name: str) -> None:
    properties = types.SimpleNamespace(
        name=name, total_memory=total_bytes, major=compute_capability[0], minor=compute_capability[1],
        multi_processor_count=num_sms, warp_size=32, is_integrated=False, gcnArchName="",
    )  # fmt: skip
    nothing = lambda *_args, **_kwargs: None  # noqa: E731
    zero = lambda *_args, **_kwargs: 0  # noqa: E731
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_args: compute_capability,
        "get_device_properties": lambda *_args: properties,
        "get_device_name": lambda *_args: name,
        "get_arch_list": lambda: [f"sm_{compute_capability[0]}{compute_capability[1]}"],
        "is_bf16_supported": lambda *_args, **_kwargs: compute_capability >= (8, 0),
        "is_current_stream_capturing": lambda: False,
        "mem_get_info": lambda *_args: (total_bytes, total_bytes),
        "memory_stats": lambda *_args: {},
        "get_rng_state": lambda *_args: torch.zeros(16, dtype=torch.uint8),
        **dict.fromkeys(
            ("_lazy_init", "init", "synchronize", "empty_cache", "set_device", "manual_seed", "manual_seed_all",
             "seed", "seed_all", "set_rng_state", "reset_peak_memory_stats", "reset_max_memory_allocated",
             "set_per_process_memory_fraction", "ipc_collect"),
            nothing,
        ),
        **dict.fromkeys(
            ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), zero
        ),
    }  # fmt: skip
    for attribute, answer in answers.items():
        setattr(torch.cuda, attribute, answer)
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: 92400


def _admit_fake_tensors() -> None:
    """Where torch asks for the exact type of a tensor, a fake one is as good."""
    for module in (optimizers, foreach):
        module._foreach_supported_types.append(FakeTensor)
    # Module.to swaps parameters, which is refused for tensors with weak references; those
    # that fake tensors hold in their own memo do no harm.
    torch.utils.weakref = types.SimpleNamespace(  # type: ignore[assignment, attr-defined]
        **{**vars(weakref), "getweakrefs": lambda _object: []}
    )
    torch.Tensor.tolist = _tolist  # type: ignore[method-assign, assignment]
    torch.Tensor.numpy = _numpy  # type: ignore[method-assign, assignment]


_original_tolist = torch.Tensor.tolist
_original_numpy = torch.Tensor.numpy


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
        with torch.utils._python_dispatch._disable_current_modes():
            value = torch.zeros(tuple(tensor.shape), dtype=tensor.dtype)
    return _original_numpy(value, force=force)


def answer_for_libraries() -> None:
    """Make libraries that look for fake tensors take the path of real ones.

    transformers keeps its attention masks when it sees a fake tensor; a CUDA run looks at
    the mask and drops it where it can.
    """
    imports = sys.modules.get("transformers.utils.import_utils")
    if imports is not None:
        imports.is_fake_tensor = lambda _tensor: False  # type: ignore[attr-defined]


def _refuse_what_is_not_modelled() -> None:
    def refuse_compile(*_args: Any, **_kwargs: Any) -> Any:
        frame = inspect.stack()[1]
        raise UnsupportedError(
            f"{frame.filename}:{frame.lineno}: torch.compile is not modelled, since a compiled step allocates "
            "otherwise than an eager one; estimate the eager step (leave torch.compile out)"
        )

    torch.compile = refuse_compile
