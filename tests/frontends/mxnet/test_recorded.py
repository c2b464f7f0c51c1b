"""What the pool holds, against MXNet's own GPU build."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dnnmem_tune.allocators.mxnet_pool import MxnetPoolPolicy
from dnnmem_tune.allocators.replay import replay
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.mxnet.client import MxnetRecorder
from dnnmem_tune.operators.scratch import KernelTarget, SizeTable
from dnnmem_tune.units import MIB

Open = Callable[..., MxnetRecorder]

RECORDED = json.loads((Path(__file__).parents[2] / "recorded" / "mxnet_gpu_build_1.9.1.json").read_text())["cases"]
TOLERANCE = {"executor": 0.005, "hybridized": 0.005, "imperative": 0.03}


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['model']}-{case['execution']}")
def test_pool_is_that_of_the_gpu_build(open_recorder: Open, case: dict[str, Any]) -> None:
    """Against MXNet's own GPU build on libraries without a card; see the file for how it was recorded."""
    batch_size = case["batch"]
    params = {"execution": case["execution"], "optimizer": case["optimizer"]}
    request = RecordRequest(workload=case["model"], batch_size=batch_size, params=params)
    (trace,) = open_recorder(case["model"]).record([request])
    target = KernelTarget(compute_capability=(7, 0), num_sms=80, threads_per_sm=2048)

    timeline = replay(
        trace.events, SizeTable(trace, target).at(batch_size), MxnetPoolPolicy().make_allocator(1 << 45, 1 << 34)
    )

    expected = case["pool_mebibytes"] * MIB
    assert timeline.peak.reserved_bytes == pytest.approx(expected, rel=TOLERANCE[case["execution"]])
