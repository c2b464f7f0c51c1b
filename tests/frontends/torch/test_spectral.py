"""Fourier transforms: workspace, copies and passes, as the CUDA build allocates them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frontends.torch.recorded_operators import in_canonical_order, rows_of, trace_all

pytest.importorskip("torch")


@pytest.mark.parametrize("row", rows_of("spectral"), ids=lambda row: row["case"])
def test_transform_allocates_as_the_cuda_build_does(row: dict[str, Any]) -> None:
    """The work area of cuFFT is the model's own; copies around it and alternating buffers are PyTorch's."""
    traced = trace_all("spectral", row["card"])[row["case"]]

    assert in_canonical_order(traced) == in_canonical_order(row["events"])
