"""Example batches on the CPU, as a data loader yields them."""

from __future__ import annotations

import torch

from dnnmem_tune.errors import UsageError

Batch = tuple[torch.Tensor, torch.Tensor]


def images_and_classes(
    batch_size: int, image_size: int = 224, in_channels: int = 3, num_classes: int = 1000
) -> Batch:
    """Return images and the class of each."""
    images = torch.randn(batch_size, in_channels, image_size, image_size)
    return images, torch.randint(0, num_classes, (batch_size,))


def images_and_masks(batch_size: int, image_size: int = 512, in_channels: int = 3, num_classes: int = 2) -> Batch:
    """Return images and the class of each pixel."""
    images = torch.randn(batch_size, in_channels, image_size, image_size)
    return images, torch.randint(0, num_classes, (batch_size, image_size, image_size))


def vectors_and_classes(batch_size: int, in_features: int = 784, num_classes: int = 10) -> Batch:
    """Return feature vectors and the class of each."""
    return torch.randn(batch_size, in_features), torch.randint(0, num_classes, (batch_size,))


def tokens_and_targets(batch_size: int, seq_len: int, vocab_size: int) -> Batch:
    """Return tokens and, for every position, the token to predict; each ``(batch_size, seq_len)``."""
    return (
        torch.randint(0, vocab_size, (batch_size, seq_len)),
        torch.randint(0, vocab_size, (batch_size, seq_len)),
    )


def require_positions(seq_len: int, max_positions: int) -> None:
    """Check that every token has a position; no error would tell before the kernel runs.

    Raises:
        UsageError: If ``seq_len`` is above ``max_positions``.

    """
    if seq_len > max_positions:
        raise UsageError(f"seq_len={seq_len} is above max_positions={max_positions}; raise the latter too")
