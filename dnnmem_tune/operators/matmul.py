"""Workspaces of cuBLAS, which PyTorch takes from its own allocator."""

from __future__ import annotations

_DEFAULT_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
_HOPPER_BYTES = 4096 * 8 * 1024


def cublas_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """Return the workspace of one cuBLAS handle on one stream.

    Every thread that multiplies matrices has a handle of its own, so a training step has
    two: that of the forward pass and that of the backward pass. They are never freed.

    Args:
        compute_capability: Major and minor.

    Returns:
        Bytes: 8,519,680, or 33,554,432 from Hopper on.

    Source:
        ``parseChosenWorkspaceSize`` in ``aten/src/ATen/cuda/CublasHandlePool.cpp``, torch 2.14.

    Example:
        >>> cublas_workspace_bytes((8, 0))
        8519680

    """
    return _HOPPER_BYTES if compute_capability[0] >= 9 else _DEFAULT_BYTES
