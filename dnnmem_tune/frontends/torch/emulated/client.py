"""The caller's side of the emulated recorder. Nothing of torch is imported here."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from dnnmem_tune.emulator.cache import ensure_build
from dnnmem_tune.emulator.card import Card
from dnnmem_tune.emulator.installation import Installation, find_installation
from dnnmem_tune.errors import DnnMemError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.client import (
    DEFAULT_MEMORY_LIMIT_BYTES,
    DEFAULT_TIME_LIMIT_SECONDS,
    TorchRecorder,
    error_from,
)
from dnnmem_tune.frontends.torch.emulated.exact import ExactRun, decode_run

_ROOT = Path(__file__).resolve().parents[4]


class EmulatedRecorder(TorchRecorder):
    """Records PyTorch training steps that run on an emulated card, in a worker process.

    Args:
        workload: Reference of the workload.
        card: What the workload sees; a trace is recorded without running out of memory, an exact
            run meets the card as it is.
        installation: The CUDA build of PyTorch to run; that of this interpreter by default.
        cache: Folder of built stub libraries; the user's own by default.
        time_limit: Seconds that one job may take.
        memory_limit: Host memory in bytes that one job may take.

    Raises:
        UnsupportedError: If there is no PyTorch that can be emulated.

    """

    name = "emulated"
    module = "dnnmem_tune.frontends.torch.emulated.worker"

    def __init__(
        self,
        workload: str,
        *,
        card: Card,
        installation: Installation | None = None,
        cache: Path | None = None,
        time_limit: float = DEFAULT_TIME_LIMIT_SECONDS,
        memory_limit: int = DEFAULT_MEMORY_LIMIT_BYTES,
    ) -> None:
        self.installation = installation or find_installation()
        self.card = card
        self._cache = cache
        super().__init__(
            workload,
            compute_capability=card.compute_capability,
            total_bytes=card.total_bytes,
            num_sms=card.num_sms,
            time_limit=time_limit,
            memory_limit=memory_limit,
            python=self.installation.python,
        )

    def fingerprint(self) -> str:
        """Return what a cached trace depends on: kernels differ with the card, and with PyTorch's release."""
        card = self.card
        return f"torch {self.installation.version}, {self.name}, {card.num_sms} SMs, {card.total_bytes} bytes"

    def run(
        self, requests: Sequence[RecordRequest], *, conv_workspace: str = "none"
    ) -> list[ExactRun | DnnMemError]:
        """Run each request on the card as it is; return what PyTorch's allocator reports, or the error.

        Args:
            requests: What to run.
            conv_workspace: Model of the convolution workspace.

        Raises:
            DnnMemError: If the worker cannot be started, or the workload cannot be loaded.

        """
        results = self._results(requests, exact={"conv_workspace": conv_workspace})
        return [
            error_from(result["error"]) if "error" in result else decode_run(result["answer"])
            for result in results
        ]

    def _start(self) -> None:
        folder = ensure_build(self.installation, self._cache)
        self._setup |= {"emulator": str(folder), "card": dataclasses.asdict(self.card)}
        super()._start()

    def _environment(self) -> dict[str, str]:
        """The other interpreter finds this package beside its own."""
        path = os.environ.get("PYTHONPATH")
        return {**os.environ, "PYTHONPATH": f"{_ROOT}{os.pathsep}{path}" if path else str(_ROOT)}
