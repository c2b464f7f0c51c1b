"""Example batches on the CPU, as a data loader yields them."""

from __future__ import annotations

import torch

Batch = tuple[torch.Tensor, torch.Tensor]


def images_and_classes(
    batch_size: int, image_size: int = 224, in_channels: int = 3, num_classes: int = 1000
) -> Batch:
    """Return images and the class of each."""
    images = torch.randn(batch_size, in_channels, image_size, image_size)
    return images, torch.randint(0, num_classes, (batch_size,))
