"""Make a fake CUDA device pass through torch's own C++ checks, without a GPU and without a compiler.

Two things stand in the way of a backward pass over fake ``cuda`` tensors:

1. A CPU-only build has no device guard for CUDA ("PyTorch is not linked with support for
   cuda devices"). ``torch._C._ensureCUDADeviceGuardSet`` installs torch's own no-op guard,
   but only where a guard that reports no devices is registered. A dummy object whose every
   virtual function returns 0 is registered, and torch replaces it.
2. The autograd engine asks the CUDA hooks whether CUDA is built, and for a device context.
   The hooks object gets a copy of its virtual table in which ``isBuilt`` says yes and
   ``hasPrimaryContext`` says no.

The engine sizes its device queues once, at the first backward pass of a process, so
``install`` must run before any; a worker process of its own guarantees that.

Source: ``c10/core/impl/DeviceGuardImplInterface.h`` and ``ATen/detail/AcceleratorHooksInterface.h``
of torch 2.13; tested on the 2.13.0 CPU wheel and the 2.14.1 CUDA wheel, Linux x86-64.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

_CUDA = 1
"""``c10::DeviceType::CUDA``."""

_NUM_DEVICE_TYPES = 22
_NUM_GUARD_VIRTUALS = 64
_NUM_HOOK_VIRTUALS = 96

_IS_BUILT, _HAS_PRIMARY_CONTEXT = 2, 4
"""Slots after the two destructors: isBuilt, isAvailable, hasPrimaryContext."""

_kept_alive: list[Any] = []
"""C++ holds bare pointers to these for the life of the process."""


def install() -> None:
    """Let this process run forward and backward passes on fake CUDA tensors.

    Raises:
        RuntimeError: If this build of torch does not have the expected symbols.

    """
    if _kept_alive:
        return
    libraries = Path(torch.__file__).parent / "lib"
    try:
        _register_guard(ctypes.CDLL(str(libraries / "libc10.so")))
        _replace_hooks(ctypes.CDLL(str(libraries / "libtorch_cpu.so")))
    except (OSError, AttributeError, ValueError) as error:
        raise RuntimeError(
            f"torch {torch.__version__} cannot trace for a CUDA device that is not there "
            f"(supported: Linux x86-64 builds of torch): {error}"
        ) from error


def _register_guard(c10: ctypes.CDLL) -> None:
    registry = (ctypes.c_void_p * _NUM_DEVICE_TYPES).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    if not registry[_CUDA]:
        returns_zero = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: 0)
        address = ctypes.cast(returns_zero, ctypes.c_void_p).value
        table = (ctypes.c_void_p * _NUM_GUARD_VIRTUALS)(*[address] * _NUM_GUARD_VIRTUALS)
        guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        _kept_alive.extend([returns_zero, table, guard])
        registry[_CUDA] = ctypes.addressof(guard)
    torch._C._ensureCUDADeviceGuardSet()


def _replace_hooks(torch_cpu: ctypes.CDLL) -> None:
    get_hooks = torch_cpu["_ZN2at6detail12getCUDAHooksEv"]
    get_hooks.restype = ctypes.c_void_p
    table_pointer = ctypes.c_void_p.from_address(get_hooks())
    original = table_pointer.value
    if original is None:
        raise ValueError("the CUDA hooks object has no virtual table")
    # Two words before the table: offset to top and type information.
    words = (ctypes.c_void_p * (_NUM_HOOK_VIRTUALS + 2)).from_address(
        original - 2 * ctypes.sizeof(ctypes.c_void_p)
    )
    table = (ctypes.c_void_p * (_NUM_HOOK_VIRTUALS + 2))(*list(words))
    yes = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda _self: 1)
    no = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int8)(lambda _self, _device: 0)
    table[2 + _IS_BUILT] = ctypes.cast(yes, ctypes.c_void_p).value
    table[2 + _HAS_PRIMARY_CONTEXT] = ctypes.cast(no, ctypes.c_void_p).value
    _kept_alive.extend([table, yes, no])
    table_pointer.value = ctypes.addressof(table) + 2 * ctypes.sizeof(ctypes.c_void_p)
