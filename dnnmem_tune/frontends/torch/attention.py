"""``scaled_dot_product_attention`` as the CUDA build composes it.

The CPU build's composite operator decides for the CPU. This one chooses as CUDA does, and
prepares mask and inputs with the same operators around the kernel.

Source: ``aten/src/ATen/native/transformers/attention.cpp``, torch 2.14.
"""

from __future__ import annotations

from typing import Any

import torch

from dnnmem_tune.frontends.torch.attention_choice import AttentionCall, choose_backend, softmax_scale

aten = torch.ops.aten

_MASK_ALIGNMENT = 8
"""Elements at multiples of which the memory-efficient kernel wants the mask's rows to start."""

_FLASH_ALIGNMENT = 8
"""Elements of which the head width is made a multiple for the flash kernel."""


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
    if query.dim() == key.dim() == value.dim() == 3:
        mask = attn_mask.unsqueeze(0) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
        batched = scaled_dot_product_attention(
            compute_capability, query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), mask, dropout_p,
            is_causal, scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
        return batched.squeeze(0)
    call = AttentionCall(
        query=query, key=key, value=value, mask=attn_mask, dropout=dropout_p, causal=is_causal,
        grouped=enable_gqa, compute_capability=compute_capability,
    )  # fmt: skip
    result: Any
    match choose_backend(call):
        case "flash":
            return _flash(call, scale)
        case "cudnn":
            result = aten._scaled_dot_product_cudnn_attention(
                query, key, value, _float_mask(call), call.needs_grad, dropout_p, is_causal, False, scale=scale
            )
        case "efficient":
            result = aten._scaled_dot_product_efficient_attention(
                query, key, value, _aligned_mask(call), call.needs_grad, dropout_p, is_causal, scale=scale
            )
        case "math":
            result = aten._scaled_dot_product_attention_math(
                query,
                key,
                value,
                _float_mask(call),
                dropout_p,
                is_causal,
                None,
                scale=scale,
                enable_gqa=enable_gqa,
            )
    output: torch.Tensor = result[0]
    return output


def _float_mask(call: AttentionCall) -> torch.Tensor | None:
    """``convert_boolean_attn_mask``: zero where attention is allowed, minus infinity elsewhere."""
    mask = call.mask
    if mask is None or mask.dtype is not torch.bool:
        return mask
    allowed, forbidden = (
        torch.scalar_tensor(value, dtype=call.query.dtype, device=mask.device) for value in (0.0, float("-inf"))
    )
    return torch.where(mask, allowed, forbidden)


def _aligned_mask(call: AttentionCall) -> torch.Tensor | None:
    """``preprocess_mask``: rows that start at aligned addresses, for every head of every sample."""
    mask = _float_mask(call)
    if mask is None:
        return None
    if mask.stride(-1) != 1 or any(stride % _MASK_ALIGNMENT for stride in mask.stride()[:-1]):
        length = mask.size(-1)
        mask = torch.nn.functional.pad(mask, (0, _MASK_ALIGNMENT - length % _MASK_ALIGNMENT))[..., :length]
    return mask.expand(*call.query.shape[:3], call.key.size(2))


def _flash(call: AttentionCall, scale: float | None) -> torch.Tensor:
    """Heads whose width is no multiple of 8 are padded, and the result is sliced."""
    width = call.query.size(-1)
    padding = -width % _FLASH_ALIGNMENT
    inputs = call.inputs if not padding else tuple(torch.nn.functional.pad(t, (0, padding)) for t in call.inputs)
    output: torch.Tensor = aten._scaled_dot_product_flash_attention(
        *inputs, call.dropout, call.causal, False, scale=softmax_scale(call.query, scale)
    )[0]
    return output[..., :width] if padding else output
