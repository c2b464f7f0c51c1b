"""Who asked for memory, and what for: phase, module path and category of each storage.

Forward operators belong to the innermost module that is running. A backward operator
belongs to the module whose forward operator made its autograd node: both carry the same
sequence number. Categories are settled at the end, when it is known how long each
storage lived and which ones parameters, gradients and optimizer states own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from dnnmem_tune.ir.trace import Category, Phase

Identify = Callable[[torch.Tensor], int | None]
"""Tensor -> index of its storage in the trace, if it is on the device."""


class Attribution:
    """Follows modules, autograd and optimizers while a step runs."""

    def __init__(self) -> None:
        self.step = -1
        self.owners: dict[int, tuple[Category, str]] = {}
        """Storage index -> what it holds and the path of the module that owns it."""
        self._identify: Identify = lambda _tensor: None
        # Weak, since a workload that drops a model must see its memory go.
        self._paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._stack: list[str] = []
        self._module_of_sequence: dict[int, str] = {}
        self._num_optimizers_running = 0
        self._num_backward_running = 0

    @contextmanager
    def watching(self, identify: Identify) -> Iterator[None]:
        """Install the hooks; ``identify`` names the storage of a tensor."""
        self._identify = identify
        handles = [
            module_hooks.register_module_forward_pre_hook(self._enter_module),
            module_hooks.register_module_forward_hook(self._leave_module, always_call=True),
            optimizer_hooks.register_optimizer_step_pre_hook(self._enter_optimizer),
            optimizer_hooks.register_optimizer_step_post_hook(self._leave_optimizer),
        ]
        run_backward = torch.autograd.graph._engine_run_backward

        def run_backward_in_phase(*args: Any, **kwargs: Any) -> Any:
            self._num_backward_running += 1
            try:
                return run_backward(*args, **kwargs)
            finally:
                self._num_backward_running -= 1

        holders: list[Any] = [torch.autograd, torch.autograd.graph]
        for holder in holders:
            holder._engine_run_backward = run_backward_in_phase
        try:
            yield
        finally:
            for holder in holders:
                holder._engine_run_backward = run_backward
            for handle in handles:
                handle.remove()

    @property
    def in_backward(self) -> bool:
        """Whether the autograd engine is running."""
        return self._num_backward_running > 0

    def where(self) -> tuple[str, Phase]:
        """Return the module path and the phase of the operator that is running now."""
        if self._num_optimizers_running:
            return "", Phase.OPTIMIZER
        if self._num_backward_running:
            if self._stack:  # activation checkpointing runs the forward operators again
                return self._stack[-1], Phase.BACKWARD
            node = torch._C._current_autograd_node()
            path = self._module_of_sequence.get(node._sequence_nr(), "") if node is not None else ""
            return path, Phase.BACKWARD
        path = self._stack[-1] if self._stack else ""
        if path and torch.is_grad_enabled():
            # The node of this operator was made just before the operator was dispatched.
            self._module_of_sequence[torch._C._autograd._get_sequence_nr() - 1] = path
        return path, Phase.BUILD if self.step < 0 else Phase.FORWARD

    def settle_model(self) -> None:
        """Note which storages parameters and buffers own now; called after each step."""
        for root in list(self._roots):
            for name, parameter in root.named_parameters():
                self._own(parameter, Category.WEIGHT, name.rpartition(".")[0])
                if parameter.grad is not None:
                    self._own(parameter.grad, Category.WEIGHT_GRADIENT, name.rpartition(".")[0])
            for name, buffer in root.named_buffers():
                self._own(buffer, Category.BUFFER, name.rpartition(".")[0])

    def _own(self, tensor: torch.Tensor, category: Category, path: str) -> None:
        index = self._identify(tensor)
        if index is not None:
            self.owners.setdefault(index, (category, path))

    def _enter_module(self, module: torch.nn.Module, _inputs: Any) -> None:
        path = self._paths.get(module)
        if path is None:
            path = self._learn_root(module)
        self._stack.append(path)

    def _leave_module(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()

    def _learn_root(self, module: torch.nn.Module) -> str:
        """A module met outside every known one is a root; its children are named from it."""
        name = type(module).__name__
        self._roots.add(module)
        for path, child in module.named_modules():
            self._paths.setdefault(child, path or name)
        for path, parameter in module.named_parameters():
            self._own(parameter, Category.WEIGHT, path.rpartition(".")[0])
        for path, buffer in module.named_buffers():
            self._own(buffer, Category.BUFFER, path.rpartition(".")[0])
        return self._paths[module]

    def _enter_optimizer(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._own(parameter, Category.WEIGHT, "")
                if parameter.grad is not None:
                    self._own(parameter.grad, Category.WEIGHT_GRADIENT, "")
        self._num_optimizers_running += 1

    def _leave_optimizer(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._num_optimizers_running -= 1
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    self._own(value, Category.OPTIMIZER_STATE, "")
