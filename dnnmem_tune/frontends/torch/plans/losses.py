"""Losses that take memory inside a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.plans.registry import Action, Output, Take, memory_plan
from dnnmem_tune.ir.size import Polynomial

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@memory_plan(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def ctc_loss_backward(_recorder: Recorder, args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """The backward variables, as large as the forward ones, live beside the gradient.

    Source: ``ctc_loss_backward_gpu_template`` in ``aten/src/ATen/native/cuda/LossCTC.cu``, torch 2.13.
    """
    log_alpha = args[6]
    yield Take(Polynomial(log_alpha.numel() * log_alpha.element_size()))
    yield Output(output)
