"""Operators for which torch has no meta kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dnnmem_tune.frontends.torch import values
from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@intercept(aten._fused_sgd_.default, aten._fused_sgd_.tensor_lr)
def fused_sgd(_recorder: Recorder, _func: Any, _args: Any, _kwargs: Any) -> None:
    """In place; torch 2.13 has no meta kernel for it."""


@intercept(aten._pin_memory.default)
def pin_memory(_recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """Pinned host memory is host memory."""
    return args[0].clone()


@intercept(aten.is_pinned.default)
def is_pinned(_recorder: Recorder, _func: Any, _args: Any, _kwargs: Any) -> bool:
    """No host tensor of a trace is pinned."""
    return False


@intercept(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def ctc_loss(recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """The loss of each sequence, and the forward variables over time and twice the longest target.

    Source: ``ctc_loss_gpu_template`` in ``aten/src/ATen/native/cuda/LossCTC.cu``, torch 2.13.
    """
    log_probabilities, targets, _input_lengths, target_lengths, *_rest = args
    time, batch = log_probabilities.size(0), log_probabilities.size(1)
    longest = _longest_target(recorder, targets, target_lengths)
    return log_probabilities.new_empty(batch), log_probabilities.new_empty((batch, time, 2 * longest + 1))


def _longest_target(recorder: Recorder, targets: torch.Tensor, lengths: Any) -> int:
    if isinstance(lengths, torch.Tensor):
        value = values.known_value(lengths)
        if value is None:
            recorder.host_reads.bound("aten::_ctc_loss")
            return targets.size(1) if targets.dim() == 2 else targets.numel()
        with _disable_current_modes():
            return int(value.max())
    return int(max(lengths))


@intercept(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def ctc_loss_backward(_recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """The gradient of the log-probabilities; the backward variables are as large as the forward ones."""
    return torch.empty_like(args[1], memory_format=torch.contiguous_format)
