"""Matrix products and softmax of operands in layouts that CUDA copies, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]

CASES: dict[str, dict[str, Any]] = {
    "mm": {"shapes": [[64, 96], [96, 32]]},
    "mm of columns": {"shapes": [[96, 64], [32, 96]], "calculation": "mm", "view": "transposed"},
    "mm of every second column": {"shapes": [[64, 192], [96, 64]], "calculation": "mm", "view": "every second"},
    "mm of an expanded row": {"shapes": [[1, 96], [96, 32]], "calculation": "mm", "view": "expanded"},
    "mm of conjugates": {
        "shapes": [[64, 96], [96, 32]], "calculation": "mm", "dtype": "complex64", "view": "conj",
    },
    "addmm": {"shapes": [[32], [64, 96], [96, 32]]},
    "bmm": {"shapes": [[2, 64, 96], [2, 96, 32]]},
    "bmm of columns": {"shapes": [[2, 96, 64], [2, 32, 96]], "calculation": "bmm", "view": "transposed"},
    "bmm of every second column": {
        "shapes": [[2, 64, 192], [2, 96, 64]], "calculation": "bmm", "view": "every second",
    },
    "bmm of an expanded row": {"shapes": [[2, 1, 96], [2, 96, 32]], "calculation": "bmm", "view": "expanded"},
    "bmm whose gradient is expanded": {"shapes": [[2, 64, 96], [2, 96, 32]], "calculation": "bmm", "loss": "sum"},
    "bmm of conjugates": {
        "shapes": [[2, 64, 96], [2, 96, 32]], "calculation": "bmm", "dtype": "complex64", "view": "conj",
    },
    "baddbmm": {"shapes": [[2, 64, 32], [2, 64, 96], [2, 96, 32]]},
    "softmax": {"shapes": [[2, 64, 96]]},
    "softmax of columns": {"shapes": [[2, 64, 96]], "calculation": "softmax", "view": "transposed"},
    "softmax in half": {"shapes": [[2, 64, 96]], "calculation": "softmax", "dtype": "float16"},
    "log softmax of columns": {"shapes": [[2, 64, 96]], "calculation": "log_softmax", "view": "transposed"},
    "log softmax whose gradient is expanded": {
        "shapes": [[2, 64, 96]], "calculation": "log_softmax", "loss": "sum",
    },
    # Without its backward: the recording card does not know the ends of the groups by then.
    "grouped": {"shapes": [[64, 96], [4, 96, 32]], "loss": "none"},
    "layer norm of columns": {"shapes": [[2, 64, 96]], "calculation": "layer_norm", "view": "transposed"},
}  # fmt: skip

_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.transpose(-1, -2),
    "every second": lambda tensor: tensor[..., ::2],
    "expanded": lambda tensor: tensor.expand(*tensor.shape[:-2], 64, -1) if tensor.size(-2) == 1 else tensor,
    "conj": lambda tensor: tensor.conj(),
}


def _layer_norm(tensors: Tensors) -> torch.Tensor:
    return torch.nn.functional.layer_norm(tensors[0], tensors[0].shape[-1:])


def _grouped(tensors: Tensors) -> torch.Tensor:
    ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32, device=tensors[0].device)
    return torch.nn.functional.grouped_mm(*tensors, offs=ends)


_CALCULATIONS: dict[str, Callable[[Tensors], torch.Tensor]] = {
    "mm": lambda tensors: torch.mm(*tensors),
    "addmm": lambda tensors: torch.addmm(*tensors),
    "bmm": lambda tensors: torch.bmm(*tensors),
    "baddbmm": lambda tensors: torch.baddbmm(*tensors),
    "softmax": lambda tensors: torch.softmax(tensors[0], -1),
    "log_softmax": lambda tensors: torch.log_softmax(tensors[0], -1),
    "layer_norm": _layer_norm,
    "grouped": _grouped,
}
CASES = {name: {"calculation": name.split()[0], **params} for name, params in CASES.items()}


def build(
    batch_size: int, device: torch.device, *, calculation: str, shapes: list[list[int]], view: str = "",
    loss: str = "", dtype: str = "float32",
) -> Callable[[], None]:  # fmt: skip
    """Return one calculation and its backward; the first extent 2 of three stands for the batch."""

    def step() -> None:
        leaves = [
            torch.empty(
                [batch_size, *shape[1:]] if len(shape) == 3 and shape[0] == 2 else shape,
                dtype=getattr(torch, dtype), device=device, requires_grad=True,
            )
            for shape in shapes
        ]  # fmt: skip
        output = _CALCULATIONS[calculation]([_VIEWS[view](leaf) for leaf in leaves])
        if loss == "sum":
            output.sum().backward()
        elif not loss:
            output.backward(torch.empty_like(output))

    return step
