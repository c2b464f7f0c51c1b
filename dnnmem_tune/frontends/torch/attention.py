"""Which kernel ``scaled_dot_product_attention`` takes on a CUDA device.

The CPU build decides for the CPU; this module decides as ``sdp_utils.cpp`` does for CUDA
and calls the same operator a CUDA run would dispatch.

Source: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and
``aten/src/ATen/native/transformers/attention.cpp``, torch 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """What the choice of a kernel depends on."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    grouped: bool
    compute_capability: tuple[int, int]

    @property
    def needs_grad(self) -> bool:
        """Whether autograd will need this call's backward."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in (self.query, self.key, self.value))


def choose_backend(call: AttentionCall) -> str:
    """Return ``cudnn``, ``flash``, ``efficient`` or ``math``, the first that is allowed in CUDA's order."""
    if call.query.dim() != 4 or 0 in (call.query.numel(), call.key.numel()):
        return "math"
    if _prefers_cudnn(call) and _cudnn_allowed(call):
        return "cudnn"
    if _flash_allowed(call):
        return "flash"
    if _efficient_allowed(call):
        return "efficient"
    return "math"


def _last_strides_are_one(call: AttentionCall) -> bool:
    return all(t.stride(-1) == 1 or t.size(-1) == 1 for t in (call.query, call.key, call.value))


def _prefers_cudnn(call: AttentionCall) -> bool:
    return call.compute_capability[0] in (9, 10)


def _cudnn_allowed(call: AttentionCall) -> bool:
    """Half types, head dimensions up to 128 in multiples of 8, no gradient of the mask."""
    head_dim, value_dim = call.query.size(-1), call.value.size(-1)
    mask_needs_grad = call.mask is not None and call.mask.requires_grad
    return (
        torch.backends.cuda.cudnn_sdp_enabled()
        and call.query.dtype in _HALF
        and head_dim % 8 == 0
        and value_dim % 8 == 0
        and head_dim <= 128
        and value_dim <= 128
        and not mask_needs_grad
        and call.query.size(2) > 1
        and (call.dropout * 16) % 1 == 0
        and _last_strides_are_one(call)
    )


def _flash_allowed(call: AttentionCall) -> bool:
    head_dim = call.query.size(-1)
    capability = call.compute_capability
    same_dims = head_dim == call.key.size(-1) == call.value.size(-1)
    if capability in ((8, 6), (8, 9), (12, 0)) and call.needs_grad:
        limit = 224 if call.dropout == 0 else 192
        if head_dim > 192 and (head_dim <= limit) is False:
            return False
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and capability >= (8, 0)
        and call.query.dtype in _HALF
        and call.mask is None
        and same_dims
        and head_dim <= 256
        and not (call.causal and call.query.size(2) != call.key.size(2))
        and _last_strides_are_one(call)
    )


def _efficient_allowed(call: AttentionCall) -> bool:
    head_dim, value_dim = call.query.size(-1), call.value.size(-1)
    alignment = _gemm_alignment(call)
    dtypes = (*_HALF, torch.float32) if call.compute_capability >= (8, 0) else (torch.float16, torch.float32)
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and call.compute_capability >= (5, 0)
        and call.query.dtype in dtypes
        and head_dim == call.key.size(-1)
        and head_dim % alignment == 0
        and value_dim % alignment == 0
        and _last_strides_are_one(call)
    )


def _gemm_alignment(call: AttentionCall) -> int:
    """``minimum_gemm_alignment``: 16 bytes with tensor cores, 4 elements from capability 8.0 on."""
    half = call.query.dtype in _HALF
    major = call.compute_capability[0]
    tensor_cores = major >= 8 or (major == 7 and half)
    alignment = 4 if major >= 8 else 1
    return max(alignment, 128 // (16 if half else 32)) if tensor_cores else alignment


def scaled_dot_product_attention(
    compute_capability: tuple[int, int],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Run the attention operator that a CUDA device of this capability would run."""
    call = AttentionCall(
        query=query, key=key, value=value, mask=attn_mask, dropout=dropout_p, causal=is_causal,
        grouped=enable_gqa and query.size(-3) != key.size(-3), compute_capability=compute_capability,
    )  # fmt: skip
    backend = choose_backend(call)
    mask = attn_mask
    if mask is not None and mask.dtype is torch.bool and backend != "math":
        mask = _as_float_mask(mask, query.dtype)
    result: Any
    match backend:
        case "flash":
            result = _flash(call, scale)
        case "cudnn":
            result = aten._scaled_dot_product_cudnn_attention(
                query, key, value, mask, call.needs_grad, dropout_p, is_causal, False, scale=scale
            )[0]
        case "efficient":
            result = _efficient(call, mask, scale)
        case _:
            result = aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]
    output: torch.Tensor = result
    return output


def _as_float_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``convert_boolean_attn_mask``: zeros where attention is allowed, else minus infinity."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _flash(call: AttentionCall, scale: float | None) -> Any:
    """Head dimensions that are no multiple of 8 are padded, and the result is sliced."""
    query, key, value = call.query, call.key, call.value
    head_dim = query.size(-1)
    if head_dim % 8 == 0:
        return aten._scaled_dot_product_flash_attention(
            query, key, value, call.dropout, call.causal, False, scale=scale
        )[0]
    padding = (0, 8 - head_dim % 8)
    query, key, value = (torch.nn.functional.pad(t, padding) for t in (query, key, value))
    output = aten._scaled_dot_product_flash_attention(
        query, key, value, call.dropout, call.causal, False, scale=scale if scale is not None else head_dim**-0.5
    )[0]
    return output[..., :head_dim]


def _efficient(call: AttentionCall, mask: torch.Tensor | None, scale: float | None) -> Any:
    """``pad_bias``: the mask's rows must start at multiples of 16 elements."""
    query, key = call.query, call.key
    if mask is not None:
        length = mask.size(-1)
        if length % 16:
            mask = torch.nn.functional.pad(mask, (0, 16 - length % 16))[..., :length]
        mask = mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
    return aten._scaled_dot_product_efficient_attention(
        query, key, call.value, mask, call.needs_grad, call.dropout, call.causal, scale=scale
    )[0]
