"""One call of attention, forward and backward, in the variants that take different buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "evaluation": {"grad": False},
    "dropout": {"dropout": 0.1},
    "dropout of a sixteenth": {"dropout": 0.125},
    "heads after length": {"by_rows": True},
    "cross attention": {"by_rows": True, "keys": 77},
    "odd length": {"queries": 101, "keys": 101},
    "width 40": {"width": 40},
    "width 33": {"width": 33},
    "width 128": {"width": 128},
    "width 160": {"width": 160},
    "width 320": {"width": 320},
    "narrow values": {"width": 192, "value_width": 128},
    "grouped": {"key_heads": 2},
    "grouped by rows": {"key_heads": 2, "by_rows": True, "causal": True},
    "boolean mask": {"mask": [2, 1, 1, 128], "mask_type": "bool"},
    "boolean mask of odd length": {"queries": 101, "keys": 101, "mask": [2, 1, 1, 101], "mask_type": "bool"},
    "mask of odd length": {"queries": 101, "keys": 101, "mask": [2, 1, 101, 101], "by_rows": True},
    "learned mask": {"mask": [1, 4, 128, 128], "mask_grad": True},
    "learned mask of odd length": {
        "queries": 101, "keys": 101, "mask": [1, 4, 101, 101], "mask_grad": True, "by_rows": True,
    },
    "three dimensions": {"dimensions": 3},
    "many keys": {"keys": 4096, "grad": False},
    "one query": {"queries": 1, "keys": 1000, "grad": False},
}  # fmt: skip
TYPES = ("float16", "float32")


def build(
    batch_size: int, device: torch.device, *, dtype: str, width: int = 64, value_width: int = 0, heads: int = 4,
    key_heads: int = 4, queries: int = 128, keys: int = 128, mask: list[int] | None = None, mask_type: str = "",
    mask_grad: bool = False, dropout: float = 0.0, causal: bool = False, grad: bool = True, by_rows: bool = False,
    dimensions: int = 4,
) -> Callable[[], None]:  # fmt: skip
    """Return one call and, where asked for, its backward."""
    kind = getattr(torch, dtype)

    def inputs(num_heads: int, length: int, size: int) -> torch.Tensor:
        if not by_rows:
            shape = (batch_size, num_heads, length, size)[4 - dimensions :]
            return torch.empty(shape, dtype=kind, device=device, requires_grad=grad)
        rows = torch.empty((batch_size, length, num_heads * size), dtype=kind, device=device, requires_grad=grad)
        return rows.view(batch_size, length, num_heads, size).transpose(1, 2)

    def step() -> None:
        query = inputs(heads, queries, width)
        key, value = inputs(key_heads, keys, width), inputs(key_heads, keys, value_width or width)
        bias = None
        if mask is not None:
            bias = torch.empty(mask, dtype=torch.bool if mask_type == "bool" else kind, device=device)
            bias.requires_grad_(mask_grad)
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, bias, dropout, causal, enable_gqa=key_heads != heads
        )
        if grad:
            if by_rows:
                output = output.transpose(1, 2).reshape(batch_size, queries, -1)
            output.backward(torch.empty_like(output))

    return step
