"""What the guard needs of an estimator: something that traces a configuration once and answers any batch size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dnnmem_tune.decisions.verdict import Verdict


class Footprint(Protocol):
    """The memory of one configuration."""

    @property
    def signature(self) -> str:
        """Text that is equal exactly for configurations with equal traces."""

    def verdict(self, batch_size: int) -> Verdict:
        """Return whether it fits at a batch size: milliseconds.

        Raises:
            DnnMemError: If that cannot be said, as where the workload does not run at this batch size.

        """

    def certainly_exceeds(self, batch_size: int) -> bool:
        """Return whether a quick bound already says that it cannot fit."""

    def encode(self) -> Any:
        """Return what another process needs to answer without a trace, as JSON values; None to trace there too."""


class Tracer(Protocol):
    """Traces configurations one after the other; owns its worker process."""

    def trace(self, params: Mapping[str, Any], batch_size: int) -> Footprint:
        """Return the memory of a configuration.

        Args:
            params: Hyperparameters without the batch size.
            batch_size: The batch size asked for first; a hint.

        Raises:
            DnnMemError: If the workload cannot be traced.

        """

    def load(self, document: Any, params: Mapping[str, Any]) -> Footprint:
        """Return what ``encode`` of another footprint wrote, for these hyperparameters.

        Raises:
            ValueError: If it was written by another release.

        """

    def close(self) -> None:
        """End the worker process."""


class TracerFactory(Protocol):
    """Makes the tracers of a pool. Must be picklable: it travels to other processes with the guard."""

    def identity(self) -> str:
        """Return what every trace depends on besides the hyperparameters: workload source, card, versions.

        Raises:
            DnnMemError: If the workload or the card cannot be found.

        """

    def make(self) -> Tracer:
        """Return a new tracer; cheap, its worker starts with the first trace."""
