"""Fused attention whose results fake tensors describe otherwise than CUDA kernels return them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@intercept(aten._scaled_dot_product_efficient_attention.default)
def efficient_attention(_recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """With dropout, seed and offset of the random numbers are kept on the host.

    Source: ``_efficient_attention_forward`` in ``attention.cu``, torch 2.14.
    """
    output, logsumexp, seed, offset = func(*args, **kwargs)
    dropout = args[5] if len(args) > 5 else kwargs.get("dropout_p", 0.0)
    if dropout > 0:
        seed, offset = (torch.empty((), dtype=torch.int64) for _ in range(2))
    return output, logsumexp, seed, offset


@intercept(aten._scaled_dot_product_efficient_attention_backward.default)
def efficient_attention_backward(_recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Grouped keys and values get gradients of their own number of heads.

    Source: ``attention_backward.cu``, torch 2.14; in the meta kernel they have the queries' heads.
    """
    grad_query, grad_key, grad_value, grad_bias = func(*args, **kwargs)
    key, value = args[2], args[3]
    if grad_key.shape != key.shape:
        grad_key, grad_value = (_by_rows(tensor) for tensor in (key, value))
    return grad_query, grad_key, grad_value, grad_bias


def _by_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor of the same shape that is contiguous with heads after the length."""
    batch, heads, length, width = tensor.shape
    return tensor.new_empty((batch, length, heads, width)).transpose(1, 2)


@intercept(aten._scaled_dot_product_cudnn_attention.default)
def cudnn_attention(_recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Without gradients there is no log-sum-exp.

    Source: ``run_cudnn_SDP_fprop`` in ``aten/src/ATen/native/cudnn/MHA.cpp``, torch 2.14.
    """
    output, logsumexp, *rest = func(*args, **kwargs)
    needs_logsumexp = args[4]
    return output, logsumexp if needs_logsumexp else logsumexp.new_empty(0), *rest
