"""Nevergrad: one line that keeps a search within a GPU.

::

    parametrization.register_cheap_constraint(FitsGpu(guard))

Nevergrad looks for a candidate that satisfies its constraints, but hands out one that does not where it
finds none in time. Ask for candidates with `ask_fitting`, which passes on only those that fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dnnmem_tune.decisions.verdict import Verdict
from dnnmem_tune.errors import UsageError
from dnnmem_tune.guard import MemoryGuard


@dataclass(frozen=True)
class FitsGpu:
    """A constraint for ``register_cheap_constraint``: at least zero where a candidate fits.

    Works for a parametrization whose value is a dictionary (``ng.p.Dict``) and for an
    ``ng.p.Instrumentation``, whose keyword arguments are the hyperparameters.
    """

    guard: MemoryGuard

    def __call__(self, value: Any) -> float:
        """Return ``1 - peak / limit``."""
        return 0.0 - self.guard.violation(self.verdict(value))

    def verdict(self, value: Any) -> Verdict:
        """Return the verdict on the value of a candidate."""
        return self.guard.check(hyperparameters(value))


def hyperparameters(value: Any) -> Mapping[str, Any]:
    """Return the named values of a candidate.

    Raises:
        UsageError: If they have no names.

    """
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping):
        return value[1]
    raise UsageError(
        f"the value {value!r} has no names for its parameters; use ng.p.Dict or keyword arguments of "
        "ng.p.Instrumentation"
    )


def ask_fitting(optimizer: Any, guard: MemoryGuard, *, worst_loss: float, max_asks: int = 1000) -> Any | None:
    """Ask an optimizer until a candidate fits.

    Candidates that do not fit are told with ``worst_loss`` and how far they are above the limit.

    Args:
        optimizer: A Nevergrad optimizer.
        guard: What judges.
        worst_loss: A loss as bad as the worst that a trial gives.
        max_asks: Give up after so many.

    Returns:
        A candidate to run and to tell; None if none was found.

    """
    fits = FitsGpu(guard)
    for _ in range(max_asks):
        candidate = optimizer.ask()
        verdict = fits.verdict(candidate.value)
        if guard.allows(verdict):
            return candidate
        optimizer.tell(candidate, worst_loss, constraint_violation=[guard.violation(verdict)])
    return None
