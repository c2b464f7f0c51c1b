"""Multi-layer perceptron on vectors, with a choice of loss and of where gradients are cleared."""

import itertools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross_entropy": lambda logits, labels, _: F.cross_entropy(logits, labels),
    "label_smoothing": lambda logits, labels, _: F.cross_entropy(logits, labels, label_smoothing=0.1),
    "bce": lambda logits, _, targets: F.binary_cross_entropy_with_logits(logits, targets),
    "mse": lambda logits, _, targets: F.mse_loss(logits, targets),
    "smooth_l1": lambda logits, _, targets: F.smooth_l1_loss(logits, targets),
}


def build(
    batch_size: int,
    device: torch.device,
    *,
    num_features: int = 784,
    width: int = 4096,
    depth: int = 4,
    num_classes: int = 1000,
    activation: str = "ReLU",
    dropout: float = 0.0,
    batch_norm: bool = False,
    loss: str = "cross_entropy",
    momentum: float = 0.0,
    clear: str = "before_forward",
    set_to_none: bool = True,
    max_norm: float | None = None,
) -> Callable[[], float]:
    """Return one SGD step of a perceptron with ``depth`` hidden layers of ``width`` units.

    Options:
        loss: A key of ``LOSSES``.
        clear: When gradients are cleared: ``before_forward``, ``before_backward`` or ``after_step``.
        max_norm: Clip the norm of all gradients to this; ``None`` does not clip.

    """
    layers: list[nn.Module] = []
    sizes = [num_features] + [width] * depth
    for before, after in itertools.pairwise(sizes):
        layers.append(nn.Linear(before, after))
        if batch_norm:
            layers.append(nn.BatchNorm1d(after))
        layers.append(getattr(nn, activation)())
        if dropout:
            layers.append(nn.Dropout(dropout))
    model = nn.Sequential(*layers, nn.Linear(width, num_classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    features = torch.randn(batch_size, num_features, device=device)
    labels = torch.randint(num_classes, (batch_size,), device=device)
    targets = torch.rand(batch_size, num_classes, device=device)

    def step() -> float:
        if clear == "before_forward":
            optimizer.zero_grad(set_to_none=set_to_none)
        value = LOSSES[loss](model(features), labels, targets)
        if clear == "before_backward":
            optimizer.zero_grad(set_to_none=set_to_none)
        value.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        if clear == "after_step":
            optimizer.zero_grad(set_to_none=set_to_none)
        return value.item()

    return step
