"""The caller's side of the TensorFlow worker. Nothing of TensorFlow is imported here."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dnnmem_tune.frontends.torch.client import TorchRecorder


class TensorFlowRecorder(TorchRecorder):
    """Traces TensorFlow training steps in a worker process.

    Args:
        workload: Reference of the workload.
        fast: Estimate the graph as it was traced, without TensorFlow's graph optimiser.
        limits: As for ``TorchRecorder``.

    """

    name = "graph"
    module = "dnnmem_tune.frontends.tensorflow.worker"
    framework = "TensorFlow"
    package = "tensorflow"

    def __init__(self, workload: str, *, fast: bool = False, **limits: Any) -> None:
        super().__init__(workload, **limits)
        self._setup["fast"] = fast
        if fast:
            self.name = "graph, fast"

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "KERAS_BACKEND": "tensorflow",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_ENABLE_ONEDNN_OPTS": "0",
        }

    def fingerprint(self) -> str:
        """Return what a cached trace depends on besides the request."""
        releases = (f"{name} {_release(name)}" for name in ("tensorflow-cpu", "tensorflow", "keras"))
        return ", ".join([*releases, self.name])


def _release(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
