"""Fused attention: the order of its outputs, copies of its inputs and the buffers of its kernels.

Source: ``attention.cu``, ``attention_backward.cu`` and ``flash_attn/flash_api.cpp`` in
``aten/src/ATen/native/transformers/cuda``, ``aten/src/ATen/native/cudnn/MHA.cpp``, torch
2.14; sequences recorded from its CUDA build are in ``tests/recorded/kernel_attention.json``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.plans.registry import Action, Give, Output, Take, memory_plan
from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.ir.trace import Category
from dnnmem_tune.operators.attention import efficient_backward_computes_delta, round_up

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_FLOAT_BYTES = 4
_FORWARD_KERNEL_WIDTH = 128
"""Wider heads than this do not leave the output in registers."""

_RANDOM_STATE_BYTES = 16
"""Seed and offset of the dropout, drawn on the device."""


@memory_plan(aten._scaled_dot_product_flash_attention.default)
def flash_forward(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """Output, log-sum-exp, partial results where keys are split, random state."""
    query, key = args[0], args[1]
    dropout = args[3] if len(args) > 3 else 0.0
    output, logsumexp, *_lengths, random_state, unused, _debug_mask = outputs
    yield Output(output)
    yield Output(logsumexp)
    if dropout == 0:
        yield from (
            _scratch("flash_attention_split", _split_shape(query, key), part) for part in ("logsumexp", "output")
        )
    yield Output(random_state)
    yield Output(unused)
    if dropout > 0:
        yield Take(Polynomial(_RANDOM_STATE_BYTES))


def _split_shape(query: torch.Tensor, key: torch.Tensor) -> list[int]:
    """Batch size, heads, queries, keys, width; a single query of grouped heads counts as one of each group."""
    batch, heads, queries, width = query.shape
    key_heads, keys = key.size(1), key.size(2)
    if queries == 1 and heads > key_heads:
        heads, queries = key_heads, heads // key_heads
    return [batch, heads, queries, keys, width]


@memory_plan(aten._scaled_dot_product_flash_attention_backward.default)
def flash_backward(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """Contiguous copies, the gradients, row sums, the queries' gradient in float32, gradients before grouping."""
    grad, query, key, value, output = args[:5]
    batch, heads, queries, width = query.shape
    yield from _copies_by_rows(grad, output)
    yield from (Output(tensor) for tensor in outputs)
    yield Take(Polynomial(batch * heads * round_up(queries, 128) * _FLOAT_BYTES))
    yield _scratch("flash_attention_backward", [batch, heads, queries, width], _determinism())
    if key.size(1) != heads:
        for tensor in (key, value):
            yield Take(Polynomial(_nbytes(tensor) // key.size(1) * heads))


@memory_plan(aten._scaled_dot_product_efficient_attention.default)
def efficient_forward(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """Random state, output, log-sum-exp, and the output in float32 where registers do not hold it."""
    query, value = args[0], args[2]
    output, logsumexp, seed, offset = outputs
    yield from (Output(tensor) for tensor in (seed, offset, output, logsumexp))
    if query.dtype in _HALF and max(query.size(-1), value.size(-1)) > _FORWARD_KERNEL_WIDTH:
        yield Take(Polynomial(output.numel() * _FLOAT_BYTES))


@memory_plan(aten._scaled_dot_product_efficient_attention_backward.default)
def efficient_backward(recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """A contiguous copy, the gradients, gradients before grouping, gradient x output, the workspace."""
    grad, query, key, value = args[:4]
    dropout = args[9]
    batch, heads, queries, width = query.shape
    half, value_width = query.dtype in _HALF, value.size(-1)
    copies = list(_copies_by_rows(grad))
    yield from copies
    yield from (Output(tensor) for tensor in outputs if tensor is not None)
    num_taken = len(copies)
    if key.size(1) != heads:
        for tensor in (key, value):
            yield Take(Polynomial(_nbytes(tensor) // key.size(1) * heads))
        num_taken += 2
    row_sums = batch * heads * queries * _FLOAT_BYTES
    if efficient_backward_computes_delta(half, max(width, value_width), recorder.compute_capability):
        yield Take(Polynomial(row_sums))
    else:
        yield from _delta_by_torch(
            num_taken, row_sums, value_width, converts=half, copies=heads > 1 and queries > 1
        )
    tag = ("half" if half else "float") + (" dropout" if dropout > 0 else "")
    yield _scratch("efficient_attention_backward", [batch, heads, queries, key.size(2), width, value_width], tag)


def _delta_by_torch(
    num_taken: int, row_sums: int, value_width: int, *, converts: bool, copies: bool
) -> Iterator[Action]:
    """``(grad_out.to(kFloat) * out.to(kFloat)).sum(-1).transpose(-2, -1).contiguous()``."""
    products = [row_sums * value_width] * (3 if converts else 1)
    for nbytes in (*products, row_sums):
        yield Take(Polynomial(nbytes))
    first = num_taken
    last = num_taken + len(products)
    if copies:
        yield Take(Polynomial(row_sums))
        yield Give(last)
    yield from (Give(number) for number in range(first, last))


@memory_plan(aten._scaled_dot_product_cudnn_attention.default)
def cudnn_forward(_recorder: Recorder, _args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """Random state, output, log-sum-exp."""
    output, logsumexp, *_lengths, seed, offset, _debug_mask = outputs
    yield from (Output(tensor) for tensor in (seed, offset, output, logsumexp))


@memory_plan(aten._scaled_dot_product_cudnn_attention_backward.default)
def cudnn_backward(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """The gradients, the incoming one in the output's layout, and what cuDNN's frontend accumulates in.

    The frontend that is compiled into PyTorch asks for the queries' gradient in float32 and
    for a row sum each; what the engine behind it asks for is not public and taken as nothing.
    """
    grad, query, output = args[0], args[1], args[4]
    yield from (Output(tensor) for tensor in outputs)
    if grad.stride() != output.stride():
        yield Take(Polynomial(_nbytes(grad)))
    rows = query.numel() // query.size(-1)
    yield Take(Polynomial((query.numel() + rows) * _FLOAT_BYTES), Category.WORKSPACE)


def _copies_by_rows(*tensors: torch.Tensor) -> Iterator[Take]:
    """Kernels want batch x length x heads x width without gaps."""
    for tensor in tensors:
        if not tensor.transpose(1, 2).is_contiguous():
            yield Take(Polynomial(_nbytes(tensor)))


def _scratch(rule: str, shape: list[int], tag: str) -> Take:
    return Take(Scratch(rule, tuple(Polynomial(number) for number in shape), tag), Category.WORKSPACE)


def _determinism() -> str:
    strict = torch.are_deterministic_algorithms_enabled()
    return "deterministic" if strict and not torch.is_deterministic_algorithms_warn_only_enabled() else ""


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
