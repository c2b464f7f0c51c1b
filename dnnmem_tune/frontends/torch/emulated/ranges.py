"""Named ranges that hooks leave in PyTorch's profile, to tell where an allocation belongs.

A dispatch mode would change what is recorded: tensors it holds are not donated to in-place
accumulation, for one. The profiler observes without taking part, so modules and optimizers
are written into its timeline, and read back when the run is over.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from dnnmem_tune.ir.trace import Category

MODULE = "dnnmem module "
OPTIMIZER = "dnnmem optimizer"
CONVOLUTION = "dnnmem convolution "

MARK_BYTES = 11
"""A mark is a request of eleven bytes, given back at once: so it stands in the allocation history itself."""

_Range: Callable[[str], Any] = torch._C._profiler._RecordFunctionFast


@dataclass(frozen=True, slots=True)
class Owned:
    """At a mark, the storage at an address belonged to something with a name."""

    mark: int
    address: int
    category: Category
    path: str
    """Module path of the owner."""


@dataclass(slots=True)
class Ranges:
    """Hooks on modules and optimizers, and the marks set so far."""

    owned: list[Owned] = field(default_factory=list)
    num_marks: int = 0
    # Weak, since a workload that drops a model must see its memory go.
    _paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = field(default_factory=weakref.WeakKeyDictionary)
    _roots: weakref.WeakSet[torch.nn.Module] = field(default_factory=weakref.WeakSet)
    _open: list[Any] = field(default_factory=list)

    def mark(self) -> int:
        """Set a mark in the allocation history and return its number."""
        torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(MARK_BYTES))
        self.num_marks += 1
        return self.num_marks - 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Install the hooks."""
        handles = [
            module_hooks.register_module_forward_pre_hook(self._enter_module),
            module_hooks.register_module_forward_hook(self._leave_module, always_call=True),
            optimizer_hooks.register_optimizer_step_pre_hook(self._enter_optimizer),
            optimizer_hooks.register_optimizer_step_post_hook(self._leave_optimizer),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def note_owners(self) -> None:
        """Note what parameters, gradients and buffers of the known models hold now."""
        mark = self.mark()
        for root in list(self._roots):
            for name, parameter in root.named_parameters():
                self._own_parameter(mark, parameter, name.rpartition(".")[0])
            for name, buffer in root.named_buffers():
                self._own(mark, buffer, Category.BUFFER, name.rpartition(".")[0])

    def _own_parameter(self, mark: int, parameter: torch.Tensor, path: str) -> None:
        self._own(mark, parameter, Category.WEIGHT, path)
        if parameter.grad is not None:
            self._own(mark, parameter.grad, Category.WEIGHT_GRADIENT, path)

    def _own(self, mark: int, tensor: Any, category: Category, path: str) -> None:
        for local in _local_tensors(tensor):
            if local.is_cuda:
                self.owned.append(Owned(mark, local.untyped_storage().data_ptr(), category, path))

    def _enter_module(self, module: torch.nn.Module, _inputs: Any) -> None:
        path = self._paths.get(module)
        if path is None:
            path = self._learn_root(module)
        entered = _Range(MODULE + path)
        entered.__enter__()
        self._open.append(entered)

    def _leave_module(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)

    def _learn_root(self, module: torch.nn.Module) -> str:
        """A module met outside every known one is a root; its children are named from it."""
        name = type(module).__name__
        self._roots.add(module)
        for path, child in module.named_modules():
            self._paths.setdefault(child, path or name)
        self.note_owners()
        return self._paths[module]

    def _enter_optimizer(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        mark = self.mark()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._own_parameter(mark, parameter, "")
        entered = _Range(OPTIMIZER)
        entered.__enter__()
        self._open.append(entered)

    def _leave_optimizer(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)
        mark = self.mark()
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    self._own(mark, value, Category.OPTIMIZER_STATE, "")


def _local_tensors(tensor: Any) -> Iterator[torch.Tensor]:
    """What this process holds of a tensor: a sharded one is a shard of it."""
    local = getattr(tensor, "_local_tensor", tensor)
    if isinstance(local, torch.Tensor) and not local.is_meta and local.layout is torch.strided:
        yield local
