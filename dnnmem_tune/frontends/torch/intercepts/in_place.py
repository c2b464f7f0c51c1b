"""Backward formulas that write in place, except for tensor subclasses, which fake tensors are.

Source: the branches on ``isTensorSubclassLike`` and ``areAnyTensorSubclassLike`` in
``torch/csrc/autograd/FunctionsManual.cpp`` and ``aten/src/ATen/native``, torch 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.intercepts.host_values import index_by_mask
from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten

_WRITE_INTO_ZEROS = (
    "Gather", "IndexSelect", "Max", "Min", "Topk", "Sort", "Kthvalue", "Mode", "Median", "Nanmedian", "Cummax",
    "Cummin",
)  # fmt: skip
"""Autograd nodes, without ``Backward`` and number, that scatter into a new tensor of zeros."""


@intercept(aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.index_add.default)
def write_into_zeros(_recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Scatter the gradient in place."""
    if _node() in _WRITE_INTO_ZEROS and not torch.is_grad_enabled():
        return _IN_PLACE[func](*args, **kwargs)
    return func(*args, **kwargs)


@intercept(aten.index_put.default)
def index_put(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Put the gradient in place."""
    in_place = _node() == "Index" and not torch.is_grad_enabled()
    return index_by_mask(recorder, aten.index_put_.default if in_place else func, args, kwargs)


@intercept(aten.sub.Tensor, aten.mul.Tensor)
def subtract_or_multiply(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Go on from the sigmoid in ``binary_cross_entropy_with_logits_backward``."""
    if (
        _node() == "BinaryCrossEntropyWithLogits"
        and not torch.is_grad_enabled()
        and isinstance(args[1], torch.Tensor)
        and recorder.made_by(args[0]) in _MADE_BY_THE_FORMULA
    ):
        return _IN_PLACE[func](*args, **kwargs)
    return func(*args, **kwargs)


_MADE_BY_THE_FORMULA = ("aten::sigmoid", "aten::sub.Tensor", "aten::add.Scalar")

_IN_PLACE = {
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
}


def _node() -> str:
    """Return the name of the autograd node that is running, without ``Backward`` and number."""
    node = torch._C._current_autograd_node()
    return node.name().partition("Backward")[0] if node is not None else ""
