"""A guard over a formula of your own instead of a trace: for jobs no front-end knows, and for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dnnmem_tune.decisions.verdict import Verdict
from dnnmem_tune.errors import DnnMemError, WorkloadError

PeakFormula = Callable[[Mapping[str, Any], int], int]
"""(hyperparameters without the batch size, batch size) -> peak device memory in bytes."""

_SIGNATURE_BATCHES = (1, 2, 3, 4, 8, 13, 64, 256)
"""Where two configurations are compared; formulas that agree on all of these are taken to be equal."""


@dataclass(frozen=True)
class FormulaTracers:
    """Tracers that ask a function for the peak.

    Example:
        >>> from dnnmem_tune.guard import MemoryGuard
        >>> def peak(params, batch_size):
        ...     return params["width"] ** 2 * 16 + batch_size * params["width"] * 4
        >>> guard = MemoryGuard(tracers=[FormulaTracers(peak, limit_bytes=1 << 20)])
        >>> guard.check({"width": 128, "batch_size": 256}).state
        <VerdictState.FITS: 'fits'>

    """

    peak: PeakFormula

    limit_bytes: int
    """Memory that a job may take."""

    def identity(self) -> str:
        """Return the name of the formula: change it when the formula changes, or clear the cache."""
        return f"formula {self.peak.__module__}.{self.peak.__qualname__}"

    def make(self) -> _FormulaTracer:
        """Return a tracer."""
        return _FormulaTracer(self)


@dataclass(frozen=True)
class _FormulaTracer:
    source: FormulaTracers

    def trace(self, params: Mapping[str, Any], batch_size: int) -> _FormulaFootprint:
        try:
            peaks = [self.source.peak(params, batch) for batch in _SIGNATURE_BATCHES]
        except DnnMemError:
            raise
        except Exception as error:
            raise WorkloadError(f"the formula raised {type(error).__name__}: {error}") from error
        signature = hashlib.sha256(repr(peaks).encode()).hexdigest()[:32]
        return _FormulaFootprint(self.source, dict(params), signature)

    def load(self, document: Any, params: Mapping[str, Any]) -> _FormulaFootprint:
        return _FormulaFootprint(self.source, document["params"], document["signature"])

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _FormulaFootprint:
    source: FormulaTracers

    params: Mapping[str, Any]

    signature: str

    def verdict(self, batch_size: int) -> Verdict:
        peak = self.source.peak(self.params, batch_size)
        kind = Verdict.fits if peak <= self.source.limit_bytes else Verdict.exceeds
        return kind(peak_bytes=peak, limit_bytes=self.source.limit_bytes)

    def certainly_exceeds(self, batch_size: int) -> bool:
        return self.source.peak(self.params, batch_size) > self.source.limit_bytes

    def encode(self) -> Any:
        return {"params": self.params, "signature": self.signature}
