"""Single operators: what each allocates in forward and backward, in which order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frontends.torch.recorded_operators import in_canonical_order, rows_of, trace_all

torch = pytest.importorskip("torch")

ROWS = rows_of("operators")
SMALLEST_BYTES = 32 << 10
"""Counters, semaphores and the state of CUB's scans are not all modelled below this."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['card']}: {row['case']}")
def test_operators_allocate_as_the_cuda_build_does(row: dict[str, Any]) -> None:
    """Results, copies, workspaces and scratch of forward and backward come in CUDA's order and size."""
    traced = trace_all("operators", row["card"])[row["case"]]

    assert without_small(traced) == without_small(row["events"])


def without_small(events: list[int]) -> list[int]:
    """Leave out small blocks, and the order within runs of frees."""
    return in_canonical_order([nbytes for nbytes in events if abs(nbytes) >= SMALLEST_BYTES])
