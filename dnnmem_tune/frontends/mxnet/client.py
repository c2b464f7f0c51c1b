"""The caller's side of the MXNet worker: asks for bound graphs, plans and lowers them here."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dnnmem_tune.errors import DnnMemError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.mxnet.batches import fit_job
from dnnmem_tune.frontends.mxnet.bound import BoundGraph
from dnnmem_tune.frontends.mxnet.lowering import BoundJob, lower
from dnnmem_tune.frontends.mxnet.settings import Settings
from dnnmem_tune.frontends.torch.client import TorchRecorder, error_from
from dnnmem_tune.ir.trace import MemoryTrace


class MxnetRecorder(TorchRecorder):
    """Binds MXNet networks in a worker process, under an interpreter that has MXNet."""

    name = "mxnet"
    module = "dnnmem_tune.frontends.mxnet.worker"

    def __init__(self, workload: str, **options: Any) -> None:
        super().__init__(workload, **options)
        self._bound: dict[str, dict[int, BoundJob]] = {}
        """Hyperparameters as text -> batch size -> what was bound."""

    def fingerprint(self) -> str:
        """Return what a cached trace depends on besides the request and the workload's source."""
        return f"mxnet, {self._python}"

    def attempt(self, requests: Sequence[RecordRequest]) -> list[MemoryTrace | DnnMemError]:
        """Return for each request its trace, or the error that the request ended with; see ``TorchRecorder``.

        Once three batch sizes have been bound and agree, no other one needs the worker.
        """
        for request in requests:
            Settings.split(request.params)  # an impossible setting needs no worker to be refused
        waiting = [request for request in requests if self._job(request) is None]
        errors: dict[int, DnnMemError] = {}
        if waiting:
            for request, result in zip(waiting, self._results(waiting), strict=True):
                if "error" in result:
                    errors[id(request)] = error_from(result["error"])
                else:
                    self._bound[_key(request)][request.batch_size] = decode_job(result["answer"])
        return [errors.get(id(request)) or self._trace(request) for request in requests]

    def _job(self, request: RecordRequest) -> BoundJob | None:
        bound = self._bound.setdefault(_key(request), {})
        if request.batch_size in bound:
            return bound[request.batch_size]
        fitted = fit_job(bound) if request.batch_size > 1 else None
        return fitted.at(request.batch_size) if fitted is not None else None

    def _trace(self, request: RecordRequest) -> MemoryTrace:
        job = self._job(request)
        assert job is not None
        settings, _ = Settings.split(request.params)
        return lower(job, settings, batch_size=request.batch_size, num_steps=request.num_steps)

    def _environment(self) -> dict[str, str]:
        """The worker needs this package's files, and nothing else of this interpreter's."""
        package = Path(__file__).resolve().parents[3]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
        return environment | {"PYTHONPATH": str(package)}


def _key(request: RecordRequest) -> str:
    return json.dumps(request.params, sort_keys=True)


def decode_job(document: dict[str, Any]) -> BoundJob:
    """Return what the worker bound."""
    return BoundJob(
        network=BoundGraph.decode(document["network"]),
        loss=BoundGraph.decode(document["loss"]) if document["loss"] is not None else None,
        inputs=frozenset(document["inputs"]),
        framework=document["framework"],
    )
