"""Matrix products and softmax: which operands are copied, and the workspaces of cuBLAS."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frontends.torch.recorded_operators import in_canonical_order, rows_of, trace_all

pytest.importorskip("torch")


@pytest.mark.parametrize("row", rows_of("matmul"), ids=lambda row: row["case"])
def test_product_allocates_as_the_cuda_build_does(row: dict[str, Any]) -> None:
    """Operands that cuBLAS cannot read are copied after the result; each thread takes one workspace."""
    traced = trace_all("matmul", row["card"])[row["case"]]

    assert in_canonical_order(traced) == in_canonical_order(row["events"])
