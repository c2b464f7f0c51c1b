"""The workspace of cuFFT plans, which PyTorch takes from its own allocator.

cuFFT answers with what its algorithm wants; sizes with small prime factors usually need one
copy of the data, and that is what is assumed for all.

Source: ``cufftXtMakePlanMany`` in the cuFFT 12 documentation ("during plan execution, cuFFT
requires a work area for temporary storage of intermediate results"); ``CuFFTConfig`` in
``aten/src/ATen/native/cuda/CuFFTPlanCache.h``, torch 2.14.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_COMPLEX_BYTES = 8


def cufft_workspace_bytes(batch: int, signal: Sequence[int]) -> int:
    """Return the bytes of a plan's work area: one complex number in single precision for each element.

    Args:
        batch: Number of transforms.
        signal: Extents of one transform, in real elements.

    Example:
        >>> cufft_workspace_bytes(32, [128])
        32768

    """
    return _COMPLEX_BYTES * batch * math.prod(signal)
