"""Plans against what MXNet prints, and traces from fitted shapes against bound ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.mxnet.client import MxnetRecorder, decode_job
from dnnmem_tune.frontends.mxnet.plan import executor_plan
from dnnmem_tune.units import MIB

Open = Callable[..., MxnetRecorder]

PAPER = ("vgg16", "resnet50", "inception_v3", "lstm", "bert-base")
ZOO = (
    "alexnet", "densenet121", "mobilenet1.0", "mobilenetv2_1.0", "resnet18_v2", "resnet34_v1", "squeezenet1.1",
    "vgg11_bn", "vgg19",
)  # fmt: skip


def _request(workload: str, batch_size: int = 8, **params: Any) -> RecordRequest:
    return RecordRequest(workload=workload, batch_size=batch_size, params=params)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PAPER, *ZOO])
def test_plan_total_is_what_mxnet_prints(open_recorder: Open, name: str) -> None:
    """Training and inference at two batch sizes; with mirroring and in half precision at one."""
    requests = [
        _request(name, batch_size, training=training) for batch_size in (8, 32) for training in (True, False)
    ]
    requests += [_request(name, mirror=True), _request(name, precision="fp16")]

    for result in open_recorder(name)._results(requests):
        graph = decode_job(result["answer"]).network
        assert sum(executor_plan(graph).planned_bytes) // MIB == graph.total_mebibytes > 0


@pytest.mark.parametrize("name", PAPER)
def test_other_batch_sizes_need_no_binding(open_recorder: Open, name: str) -> None:
    """A trace from fitted shapes is the one that MXNet's own binding gives."""
    fitted = open_recorder(name)
    fitted.record([_request(name, batch_size) for batch_size in (8, 16, 12)])
    fitted.close()
    fitted._start = _no_worker  # type: ignore[method-assign]  # it must not be needed

    assert fitted.record([_request(name, 40)]) == open_recorder(name).record([_request(name, 40)])


def _no_worker() -> None:
    raise AssertionError("the worker was asked for a batch size that could be worked out")
