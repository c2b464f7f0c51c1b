"""Single operators, forward and backward: convolutions, norms, reductions, losses, indexing, resizing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Operator = Callable[[torch.Tensor], torch.Tensor]


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An operand whose values do not matter."""
    return torch.empty(shape, device="cuda", dtype=dtype)


def indices(*shape: int) -> torch.Tensor:
    """Indices that are valid everywhere."""
    return torch.zeros(shape, device="cuda", dtype=torch.long)


def gaps(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor as a slice of a larger one; its gradient has gaps."""
    return torch.cat([tensor, tensor], 1)[:, : tensor.size(1)]


IMAGES = (8, 64, 56, 56)
OPERATORS: dict[str, tuple[tuple[int, ...], Operator]] = {
    "convolution": (IMAGES, lambda x: functional.conv2d(x, weight(128, 64, 3, 3), weight(128), padding=1)),
    "convolution of a slice": (IMAGES, lambda x: functional.conv2d(gaps(x), weight(128, 64, 3, 3), padding=1)),
    "convolution before a slice": (IMAGES, lambda x: gaps(functional.conv2d(x, weight(128, 64, 3, 3), padding=1))),
    "transposed convolution": (
        IMAGES,
        lambda x: functional.conv_transpose2d(x, weight(64, 32, 2, 2), weight(32), stride=2),
    ),
    "depthwise convolution": (IMAGES, lambda x: functional.conv2d(x, weight(64, 1, 3, 3), padding=1, groups=64)),
    "depthwise convolution before a slice": (
        IMAGES,
        lambda x: gaps(functional.conv2d(x, weight(64, 1, 3, 3), groups=64)),
    ),
    "convolution in one dimension": (
        (8, 64, 1000),
        lambda x: functional.conv1d(x, weight(128, 64, 3), weight(128)),
    ),
    "convolution in one dimension of a transposed input": (
        (8, 1000, 64),
        lambda x: functional.conv1d(x.transpose(1, 2), weight(128, 64, 3), weight(128)),
    ),
    "convolution in three dimensions": (
        (2, 16, 8, 56, 56),
        lambda x: functional.conv3d(x, weight(32, 16, 3, 3, 3)),
    ),
    "batch norm": (
        IMAGES,
        lambda x: functional.batch_norm(x, empty(64), empty(64), weight(64), weight(64), training=True),
    ),
    "batch norm of a slice": (
        IMAGES,
        lambda x: functional.batch_norm(gaps(x), empty(64), empty(64), weight(64), weight(64), training=True),
    ),
    "batch norm of rows": (
        (131072, 64),
        lambda x: functional.batch_norm(x, empty(64), empty(64), weight(64), weight(64), training=True),
    ),
    "group norm": (IMAGES, lambda x: functional.group_norm(x, 8, weight(64), weight(64))),
    "instance norm": (IMAGES, lambda x: functional.instance_norm(x)),
    "layer norm": ((4096, 768), lambda x: functional.layer_norm(x, [768], weight(768), weight(768))),
    "layer norm of many short rows": (
        (131072, 64),
        lambda x: functional.layer_norm(x, [64], weight(64), weight(64)),
    ),
    "layer norm of a permuted input": (
        IMAGES,
        lambda x: functional.layer_norm(x.permute(0, 2, 3, 1), [64], weight(64), weight(64)),
    ),
    "rms norm": ((131072, 64), lambda x: functional.rms_norm(x, [64], weight(64))),
    "sum over the batch": ((16384, 2048), lambda x: x.sum(0)),
    "mean of all": (IMAGES, lambda x: x.mean()),
    "mean over extents": (IMAGES, lambda x: x.mean((2, 3))),
    "norm": (IMAGES, lambda x: x.norm()),
    "norm of rows": (IMAGES, lambda x: x.norm(dim=1)),
    "standard deviation": (IMAGES, lambda x: x.std((2, 3))),
    "largest": (IMAGES, lambda x: x.max(1)[0]),
    "logsumexp": (IMAGES, lambda x: x.logsumexp(1)),
    "mean squared error": (IMAGES, lambda x: functional.mse_loss(x, empty(*IMAGES))),
    "smooth l1 loss": (IMAGES, lambda x: functional.smooth_l1_loss(x, empty(*IMAGES))),
    "huber loss": (IMAGES, lambda x: functional.huber_loss(x, empty(*IMAGES))),
    "l1 loss": (IMAGES, lambda x: functional.l1_loss(x, empty(*IMAGES))),
    "binary cross entropy": (IMAGES, lambda x: functional.binary_cross_entropy(x.sigmoid(), empty(*IMAGES))),
    "binary cross entropy with logits": (
        IMAGES,
        lambda x: functional.binary_cross_entropy_with_logits(x, empty(*IMAGES), pos_weight=empty(56)),
    ),
    "cross entropy": ((4096, 1000), lambda x: functional.cross_entropy(x, indices(4096))),
    "cross entropy with smoothed labels": (
        (4096, 1000),
        lambda x: functional.cross_entropy(x, indices(4096), label_smoothing=0.1),
    ),
    "kl divergence": (IMAGES, lambda x: functional.kl_div(x, empty(*IMAGES), reduction="batchmean")),
    "embedding of many indices": ((30522, 768), lambda w: functional.embedding(indices(16, 512), w)),
    "embedding of few indices": ((30522, 768), lambda w: functional.embedding(indices(64), w)),
    "embedding of sliced indices": ((1000, 64), lambda w: functional.embedding(indices(64, 512)[:, :-1], w)),
    "embedding bag": ((1000, 64), lambda w: functional.embedding_bag(indices(1024, 8), w)),
    "index": ((2000, 64), lambda x: x[indices(5000)]),
    "index with two": ((32, 100, 64), lambda x: x[indices(32, 1), indices(1, 100)]),
    "index select": ((2000, 64), lambda x: x.index_select(0, indices(5000))),
    "gather": ((2000, 64), lambda x: x.gather(1, indices(2000, 10))),
    "scatter add": ((5000, 64), lambda x: empty(2000, 64).scatter_add(0, indices(5000, 1).expand(5000, 64), x)),
    "one hot": ((1000, 100), lambda x: x * functional.one_hot(indices(1000), 100)),
    "sort": ((1000000,), lambda x: x.sort()[0]),
    "topk": (IMAGES, lambda x: x.topk(3, 1)[0]),
    "cumulative sum": (IMAGES, lambda x: x.cumsum(2)),
    "roll": (IMAGES, lambda x: x.roll((1, 2), (2, 3))),
    "unfold": (IMAGES, lambda x: functional.unfold(x, 3)),
    "resize before a slice": (IMAGES, lambda x: gaps(functional.interpolate(x, scale_factor=2))),
    "pool before a slice": (IMAGES, lambda x: gaps(functional.max_pool2d(x, 2))),
    "reflection pad": (IMAGES, lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect")),
    "linear of a transposed input": (
        IMAGES,
        lambda x: functional.linear(x.transpose(2, 3), weight(32, 56), weight(32)),
    ),
    "silu": (IMAGES, functional.silu),
    "mish": (IMAGES, functional.mish),
}

CHANNELS_LAST = (
    "convolution", "convolution before a slice", "transposed convolution", "depthwise convolution", "batch norm",
    "group norm", "mean over extents", "topk", "roll", "unfold", "resize before a slice", "reflection pad",
)  # fmt: skip
HALF = ("convolution", "depthwise convolution", "sum over the batch", "norm", "logsumexp", "mean squared error")

CASES: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in OPERATORS},
    **{f"{name}, channels last": {"name": name, "channels_last": True} for name in CHANNELS_LAST},
    **{f"{name}, half": {"name": name, "dtype": "float16"} for name in HALF},
}

_dtype = torch.float32


def weight(*shape: int) -> torch.Tensor:
    """A parameter."""
    return torch.empty(shape, device="cuda", dtype=_dtype, requires_grad=True)


def build(
    batch_size: int, device: torch.device, *, name: str, channels_last: bool = False, dtype: str = "float32"
) -> Callable[[], object]:
    """Return forward and backward of one operator, with the gradient of its result left as it comes."""
    assert batch_size > 0
    global _dtype
    _dtype = getattr(torch, dtype)
    shape, operator = OPERATORS[name]
    inputs = torch.empty(shape, device=device, dtype=_dtype)
    if channels_last:
        inputs = inputs.to(memory_format=torch.channels_last)
    inputs = inputs.detach().requires_grad_()

    def step() -> object:
        output = operator(inputs)
        torch.autograd.backward(output, torch.empty_like(output))
        return output

    return step
