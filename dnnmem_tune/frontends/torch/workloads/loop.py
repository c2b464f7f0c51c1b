"""The training loop behind every `TrainingStep`.

It is a loop, suspended after each step: a generator's names stay bound between two steps just as
those of a ``for`` loop do, so ``outputs``, ``loss`` and the batch on the device live until the
next iteration rebinds them. That decides what overlaps in memory, and by much.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.torch.workloads.checkpointing import enable_checkpointing
from dnnmem_tune.frontends.torch.workloads.optimizers import make_optimizer
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep, near

_AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Step:
    """One training step: call it again and again."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, iterations: Iterator[None]
    ) -> None:
        self.model: Any = model  # a Module does not say what its parts are
        self.optimizer: Any = optimizer
        self._iterations = iterations

    def __call__(self) -> None:
        """Run one training step."""
        next(self._iterations)


def start(spec: TrainingStep, *, model: nn.Module, batch: Any, device: torch.device | str) -> Step:
    """Move the model to the device, make the optimizer, and return the step.

    Args:
        spec: What the step does.
        model: The model, on the CPU.
        batch: One batch on the CPU.
        device: Where to train.

    Raises:
        UsageError: If nothing is trainable, or two options exclude each other.

    """
    device = torch.device(device)
    if spec.trainable:
        _freeze_all_but(model, spec.trainable)
    if spec.checkpointing and spec.mode == "train":
        enable_checkpointing(model, spec.checkpoint_blocks, reentrant=spec.checkpointing == "reentrant")
    if spec.precision == "bf16-pure":
        model.to(device, torch.bfloat16)
        batch = _cast(batch, torch.bfloat16)
    else:
        model.to(device)
    if spec.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    if spec.mode == "evaluate":
        return Step(model.eval(), None, _evaluate(spec, model, batch, device))
    model.train()
    optimizer = make_optimizer(spec, [parameter for parameter in model.parameters() if parameter.requires_grad])
    if isinstance(optimizer, torch.optim.LBFGS):
        return Step(model, optimizer, _train_with_closure(spec, model, optimizer, batch, device))
    return Step(model, optimizer, _train(spec, model, optimizer, batch, device))


def _train(
    spec: TrainingStep, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, device: torch.device
) -> Iterator[None]:
    loss_of = _loss_function(spec)
    scaler = torch.amp.GradScaler(device.type, enabled=spec.precision == "fp16")
    while True:
        if spec.zero_grad == "start":
            optimizer.zero_grad(set_to_none=spec.set_to_none)
        for micro_step in range(spec.accumulation):
            inputs = batch  # releases the previous batch on the device, as the loader's next one does
            inputs = _to_device(inputs, device, spec.channels_last)
            with _autocast(spec, device):
                outputs = _forward(model, inputs)
                loss = loss_of(outputs, inputs)
            if spec.accumulation > 1:
                loss = loss / spec.accumulation
            if spec.zero_grad == "before_backward" and micro_step == 0:
                optimizer.zero_grad(set_to_none=spec.set_to_none)
            scaler.scale(loss).backward()
        if spec.clip_grad_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), spec.clip_grad_norm)
        scaler.step(optimizer)
        scaler.update()
        if spec.zero_grad == "end":
            optimizer.zero_grad(set_to_none=spec.set_to_none)
        yield


def _train_with_closure(
    spec: TrainingStep, model: nn.Module, optimizer: torch.optim.LBFGS, batch: Any, device: torch.device
) -> Iterator[None]:
    """LBFGS evaluates the loss as often as it likes, so the loop hands it the way to do so."""
    if spec.precision == "fp16" or spec.accumulation > 1:
        raise UsageError(
            "LBFGS works neither with precision='fp16' (no gradient scaler) nor with accumulation above 1"
        )
    loss_of = _loss_function(spec)
    while True:
        inputs = batch
        inputs = _to_device(inputs, device, spec.channels_last)

        def closure(inputs: Any = inputs) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=spec.set_to_none)
            with _autocast(spec, device):
                loss = loss_of(_forward(model, inputs), inputs)
            loss.backward()
            return loss

        optimizer.step(closure)
        yield


def _evaluate(spec: TrainingStep, model: nn.Module, batch: Any, device: torch.device) -> Iterator[None]:
    loss_of = _loss_function(spec)
    while True:
        inputs = batch
        inputs = _to_device(inputs, device, spec.channels_last)
        with torch.no_grad(), _autocast(spec, device):
            outputs = _forward(model, inputs)
            loss = loss_of(outputs, inputs)
        yield
        del loss  # named only so that it lives until here


def _forward(model: nn.Module, batch: Any) -> Any:
    return model(**batch) if isinstance(batch, Mapping) else model(batch[0])


def _loss_function(spec: TrainingStep) -> Callable[[Any, Any], torch.Tensor]:
    """A function of the outputs and the batch."""
    loss = spec.loss
    if isinstance(loss, str):
        named = getattr(nn.functional, loss, None)
        if named is None:
            raise UsageError(f"torch.nn.functional has no loss {loss!r}{near(loss, dir(nn.functional))}")
        loss = named
    if loss is None:
        return _own_loss
    function = loss
    return lambda outputs, batch: function(outputs) if isinstance(batch, Mapping) else function(outputs, batch[1])


def _own_loss(outputs: Any, batch: Any) -> torch.Tensor:
    loss = outputs if isinstance(outputs, torch.Tensor) else getattr(outputs, "loss", None)
    if loss is None:
        raise UsageError(f"the model returned {type(outputs).__name__} without a loss; give TrainingStep a loss=")
    return loss


def _autocast(spec: TrainingStep, device: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast(
        device.type, dtype=_AUTOCAST.get(spec.precision, torch.bfloat16), enabled=spec.precision in _AUTOCAST
    )


def _to_device(batch: Any, device: torch.device, channels_last: bool) -> Any:
    def move(tensor: torch.Tensor) -> torch.Tensor:
        if channels_last and tensor.dim() == 4:
            return tensor.to(device, memory_format=torch.channels_last)
        return tensor.to(device)

    return _map_tensors(batch, move)


def _cast(batch: Any, dtype: torch.dtype) -> Any:
    return _map_tensors(batch, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def _map_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: _map_tensors(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_map_tensors(value, change) for value in batch)
    return batch


def _freeze_all_but(model: nn.Module, pattern: str) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(re.search(pattern, name) is not None)
