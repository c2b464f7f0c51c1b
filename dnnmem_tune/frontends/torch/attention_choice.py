"""Which kernel ``scaled_dot_product_attention`` takes on a CUDA device.

The CPU build of torch decides for the CPU; this module decides as the CUDA build does, from
shapes, strides, types and the user's switches, for any compute capability.

Source: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``sdp_utils_cpp.h``,
torch 2.14 with cuDNN 9.24 and CUDA 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

Backend = Literal["flash", "efficient", "cudnn", "math"]

_HALF = (torch.float16, torch.bfloat16)

_DEFAULT_ORDER = [1, 2, 0, 3]
"""``Context::sdp_priority_order`` before anyone sets it; the numbers of ``at::SDPBackend``."""

_CUDNN_FIRST: tuple[Backend, ...] = ("cudnn", "flash", "efficient", "math")

_BACKENDS: dict[int, Backend] = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}

_LARGEST_CUDNN_DIMENSION = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """What the choice of a kernel depends on; queries, keys and values are batch x heads x length x width."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    grouped: bool
    """Whether the user allows fewer heads of keys and values (``enable_gqa``)."""

    compute_capability: tuple[int, int]

    @property
    def needs_grad(self) -> bool:
        """Whether autograd will need this call's backward."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in self.inputs)

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value."""
        return self.query, self.key, self.value

    def has_dtype(self, *dtypes: torch.dtype) -> bool:
        """Return whether all three inputs share one of these types."""
        return self.query.dtype in dtypes and self.query.dtype == self.key.dtype == self.value.dtype


def choose_backend(call: AttentionCall) -> Backend:
    """Return the first kernel, in the order of CUDA, whose conditions the call meets.

    Raises:
        RuntimeError: If the user has switched off every kernel that could run it, as torch does.

    """
    for backend in _priority_order(call.compute_capability):
        if _CONDITIONS[backend](call):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def _priority_order(compute_capability: tuple[int, int]) -> tuple[Backend, ...]:
    """``priority_order``: cuDNN goes first on Hopper and data-center Blackwell, unless the user set an order."""
    order: list[int] = torch._C._get_sdp_priority_order()
    if order[:4] == _DEFAULT_ORDER and compute_capability[0] in (9, 10):
        return _CUDNN_FIRST
    return tuple(_BACKENDS[number] for number in order if number in _BACKENDS)


def _math_allowed(_call: AttentionCall) -> bool:
    return bool(torch.backends.cuda.math_sdp_enabled())


def _cudnn_allowed(call: AttentionCall) -> bool:
    """``can_use_cudnn_attention``."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    return (
        torch.backends.cuda.cudnn_sdp_enabled()
        and _has_four_dimensions(call)
        and not (deterministic and not torch.is_deterministic_algorithms_warn_only_enabled())
        and call.has_dtype(*(_HALF if call.compute_capability >= (8, 0) else _HALF[:1]))
        and _cudnn_takes_mask(call)
        and call.compute_capability >= (8, 0)
        and (call.dropout * 16).is_integer()
        and _lengths_are_positive(call)
        and _last_strides_are_one(call, ignore_single=True)
        and _heads_match(call)
        and _cudnn_takes_shapes(call)
        and _cudnn_has_backward(call)
    )


def _cudnn_takes_mask(call: AttentionCall) -> bool:
    """``check_attn_mask_shape``."""
    mask = call.mask
    if mask is None:
        return True
    if mask.requires_grad or mask.dim() < 2:
        return False
    batch, heads, queries, _width = call.query.shape
    if mask.size(-2) not in (queries, 1) or mask.size(-1) not in (call.key.size(2), 1):
        return False
    if mask.dim() == 2:
        return True
    return mask.dim() == 4 and mask.size(0) in (1, batch) and mask.size(1) in (1, heads)


def _cudnn_takes_shapes(call: AttentionCall) -> bool:
    """``check_cudnn_tensor_shapes`` with cuDNN 9.24."""
    batch, heads, queries, width = call.query.shape
    keys, value_width = call.key.size(2), call.value.size(3)
    limit = 256 if _cudnn_has_wide_heads(call) else 128
    if queries == 1 and call.compute_capability[0] in (10, 11):
        return False  # decoding is off for cuDNN 9.19 to 9.25.0
    return (
        max(batch, heads) <= _LARGEST_CUDNN_DIMENSION
        and max(width, value_width) <= limit
        and width % 8 == 0
        and value_width % 8 == 0
        and keys != 1
        and not (call.dropout != 0 and queries == 1)
    )


def _cudnn_has_wide_heads(call: AttentionCall) -> bool:
    return call.compute_capability == (9, 0) or (
        call.compute_capability[0] == 10 and call.compute_capability != (10, 7)
    )


def _cudnn_has_backward(call: AttentionCall) -> bool:
    """``check_cudnn_d256_bprop_head_dim``."""
    if not call.needs_grad or not _cudnn_has_wide_heads(call):
        return True
    widths = (call.query.size(3), call.value.size(3))
    return max(widths) <= 128 or widths in ((192, 128), (256, 256))


def _flash_allowed(call: AttentionCall) -> bool:
    """``can_use_flash_attention``."""
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and _has_four_dimensions(call)
        and call.mask is None
        and call.query.size(-1) == call.key.size(-1) == call.value.size(-1) <= 256
        and call.compute_capability >= (8, 0)
        and _flash_has_backward(call)
        and not (call.causal and call.query.size(-2) != call.key.size(-2))
        and call.has_dtype(*_HALF)
        and _heads_match(call)
        and _lengths_are_positive(call)
        and _last_strides_are_one(call, ignore_single=True)
    )


def _flash_has_backward(call: AttentionCall) -> bool:
    """``check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120``."""
    little_shared_memory = (8, 6) <= call.compute_capability <= (8, 9) or call.compute_capability[0] == 12
    if not (call.needs_grad and little_shared_memory):
        return True
    width = call.query.size(-1)
    return width <= 192 or (call.dropout == 0 and width > 224)


def _efficient_allowed(call: AttentionCall) -> bool:
    """``can_use_mem_efficient_attention``."""
    if not (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and _has_four_dimensions(call)
        and call.compute_capability >= (5, 0)
    ):
        return False
    alignment = _gemm_alignment(call)
    width, value_width = call.query.size(-1), call.value.size(-1)
    half = _HALF if call.compute_capability >= (8, 0) else _HALF[:1]
    return (
        width == call.key.size(-1)
        and width > 0 == width % alignment
        and value_width > 0 == value_width % alignment
        and _starts_are_aligned(call, alignment)
        and _lengths_are_positive(call)
        and _last_strides_are_one(call, ignore_single=False)
        and _heads_match(call)
        and call.has_dtype(*half, torch.float32)
    )


def _gemm_alignment(call: AttentionCall) -> int:
    """``minimum_gemm_alignment``: 16 bytes with tensor cores, 4 elements from capability 8.0 on."""
    half = call.query.dtype in _HALF
    major = call.compute_capability[0]
    tensor_cores = major >= 8 or (major == 7 and half)
    alignment = 4 if major >= 8 else 1
    return max(alignment, 128 // (16 if half else 32)) if tensor_cores else alignment


def _starts_are_aligned(call: AttentionCall, alignment: int) -> bool:
    """``check_data_ptr_alignment_mem_efficient``."""
    if call.compute_capability < (8, 0):
        return True
    return all(t.numel() == 0 or t.storage_offset() % alignment == 0 for t in call.inputs)


def _has_four_dimensions(call: AttentionCall) -> bool:
    return all(t.dim() == 4 for t in call.inputs)


def _lengths_are_positive(call: AttentionCall) -> bool:
    return call.query.size(-2) > 0 and call.key.size(-2) > 0


def _last_strides_are_one(call: AttentionCall, *, ignore_single: bool) -> bool:
    """``check_last_dim_stride_equals_1_dense``: of the inputs and of the mask."""
    inputs = all(t.stride(-1) == 1 for t in call.inputs) or (ignore_single and call.query.size(-1) == 1)
    mask = call.mask is None or call.mask.stride(-1) == 1
    return inputs and mask


def _heads_match(call: AttentionCall) -> bool:
    """``check_batch_size_and_num_heads_dense``: a single head of keys is shared without being asked to."""
    if len({t.size(0) for t in call.inputs}) != 1:
        return False
    heads, key_heads, value_heads = (t.size(-3) for t in call.inputs)
    if call.grouped:
        return key_heads == value_heads and heads % key_heads == 0
    return key_heads == value_heads and key_heads in (heads, 1)


_CONDITIONS: dict[Backend, Callable[[AttentionCall], bool]] = {
    "cudnn": _cudnn_allowed,
    "flash": _flash_allowed,
    "efficient": _efficient_allowed,
    "math": _math_allowed,
}


def softmax_scale(query: torch.Tensor, scale: float | None) -> float:
    """``calculate_scale``: one over the square root of the head's width, unless given."""
    return scale if scale is not None else 1.0 / math.sqrt(query.size(-1))
