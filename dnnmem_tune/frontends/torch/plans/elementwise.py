"""Element-wise operators whose order of allocation is not that of their schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.plans.registry import Action, Output, memory_plan

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@memory_plan(aten.native_dropout.default)
def native_dropout(_recorder: Recorder, _args: Any, _kwargs: Any, output: Any) -> Iterator[Action]:
    """The mask is allocated before the result.

    Source: ``dropout_cuda`` in ``aten/src/ATen/native/cuda/Dropout.cu``, torch 2.13.
    """
    yield Output(output[1])
    yield Output(output[0])
