"""The caller's side of the MXNet worker: asks for bound graphs, plans and lowers them here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dnnmem_tune.errors import DnnMemError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.mxnet.bound import BoundGraph
from dnnmem_tune.frontends.mxnet.lowering import BoundJob, lower
from dnnmem_tune.frontends.mxnet.settings import Settings
from dnnmem_tune.frontends.torch.client import TorchRecorder, error_from
from dnnmem_tune.ir.trace import MemoryTrace


class MxnetRecorder(TorchRecorder):
    """Binds MXNet networks in a worker process, under an interpreter that has MXNet."""

    name = "mxnet"
    module = "dnnmem_tune.frontends.mxnet.worker"

    def fingerprint(self) -> str:
        """Return what a cached trace depends on besides the request and the workload's source."""
        return f"mxnet, {self._python}"

    def attempt(self, requests: Sequence[RecordRequest]) -> list[MemoryTrace | DnnMemError]:
        """Return for each request its trace, or the error that the request ended with; see ``TorchRecorder``."""
        for request in requests:
            Settings.split(request.params)  # an impossible setting needs no worker to be refused
        results = self._results(requests)
        return [_outcome(result, request) for result, request in zip(results, requests, strict=True)]

    def _environment(self) -> dict[str, str]:
        """The worker needs this package's files, and nothing else of this interpreter's."""
        package = Path(__file__).resolve().parents[3]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
        return environment | {"PYTHONPATH": str(package)}


def _outcome(result: dict[str, Any], request: RecordRequest) -> MemoryTrace | DnnMemError:
    if "error" in result:
        return error_from(result["error"])
    settings, _ = Settings.split(request.params)
    return lower(decode_job(result["answer"]), settings, batch_size=request.batch_size, num_steps=request.num_steps)


def decode_job(document: dict[str, Any]) -> BoundJob:
    """Return what the worker bound."""
    return BoundJob(
        network=BoundGraph.decode(document["network"]),
        loss=BoundGraph.decode(document["loss"]) if document["loss"] is not None else None,
        inputs=frozenset(document["inputs"]),
        framework=document["framework"],
    )
