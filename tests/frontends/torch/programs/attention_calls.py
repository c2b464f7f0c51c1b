"""Tensors of a recorded attention call, on any device."""

from __future__ import annotations

from typing import Any

import torch


def tensors(
    call: dict[str, Any], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return query, key, value and mask as ``call`` describes them."""
    dtype = getattr(torch, call["dtype"])
    query = _inputs(call, call["heads"], call["queries"], call["width"], dtype, device)
    key = _inputs(call, call["key_heads"], call["keys"], call["width"], dtype, device)
    value = _inputs(call, call["key_heads"], call["keys"], call["value_width"], dtype, device)
    if not call["mask"]:
        return query, key, value, None
    kind, _, letters = call["mask"].rpartition(":")
    extents = {"b": call["batch"], "h": call["heads"], "q": call["queries"], "k": call["keys"], "1": 1}
    shape = [extents[letter] for letter in letters]
    mask = torch.empty(shape, dtype=torch.bool if kind == "bool" else dtype, device=device)
    return query, key, value, mask.requires_grad_(kind == "grad")


def _inputs(
    call: dict[str, Any], heads: int, length: int, width: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    batch = call["batch"]

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    match call["layout"]:
        case "rows":
            tensor = empty(batch, length, heads, width).transpose(1, 2)
        case "packed":
            tensor = empty(batch, length, 3, heads, width)[:, :, 0].transpose(1, 2)
        case "sliced":
            tensor = empty(batch, heads, length, width + 1)[..., 1:]
        case "strided":
            tensor = empty(batch, heads, width, length).transpose(2, 3)
        case _:
            tensor = empty(batch, heads, length, width)
    if call["dimensions"] == 3:
        tensor = tensor[0]
    if call["dimensions"] == 5:
        tensor = tensor.unsqueeze(0)
    return tensor.detach().requires_grad_(call["grad"])
