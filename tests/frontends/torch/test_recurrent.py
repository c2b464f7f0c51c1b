"""Recurrent networks: flat weights, reserve, workspace and copies, as the CUDA build allocates them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frontends.torch.recorded_operators import in_canonical_order, rows_of, trace_all

pytest.importorskip("torch")

ROWS = rows_of("recurrent")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["case"])
def test_network_allocates_as_the_cuda_build_does(row: dict[str, Any]) -> None:
    """Two steps from moving the module to the card on; the recorded reserve is the model's own."""
    traced = trace_all("recurrent", row["card"])[row["case"]]

    assert in_canonical_order(traced) == in_canonical_order(row["events"])
