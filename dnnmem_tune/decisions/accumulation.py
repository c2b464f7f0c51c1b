"""A wanted batch from micro-batches that fit: how large, and how many before each optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dnnmem_tune.errors import UsageError

_MICRO_BATCHES_TRIED = 4096
"""Micro-batches that the nearest plan is chosen from; the largest ones, since more of them gain nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulationPlan:
    """How a batch is made of micro-batches. Gradients are summed, and the optimizer steps once."""

    target_batch: int
    """Samples wanted between two optimizer steps."""

    micro_batch: int
    """Samples in one forward and backward."""

    steps: int
    """Micro-batches before each optimizer step."""

    traced: bool = False
    """Whether the micro-batch was estimated with the gradients of earlier ones kept. Where it was not,
    the gradients may be alive for longer than in the steps that were traced."""

    @property
    def effective_batch(self) -> int:
        """Samples between two optimizer steps."""
        return self.micro_batch * self.steps

    @property
    def exact(self) -> bool:
        """Whether the plan gives the batch that was wanted."""
        return self.effective_batch == self.target_batch

    @property
    def text(self) -> str:
        """The plan in a sentence."""
        if self.steps == 1 and self.exact:
            return f"batch {self.target_batch} fits as it is; no accumulation is needed"
        product = f"micro-batch {self.micro_batch} x {self.steps} accumulation steps = {self.effective_batch}"
        return product if self.exact else f"{product}, not the {self.target_batch} asked for"


def plan_accumulation(
    target_batch: int, largest_micro_batch: int, *, fits: Callable[[int], bool] | None = None
) -> tuple[AccumulationPlan, ...]:
    """Return the plans for a wanted batch, the one to take first.

    The exact plan with the largest micro-batch comes first. Where its micro-batch is less than half
    of what fits (a prime batch leaves 1), the nearest batch that uses the card well follows it. Without an
    exact plan, the nearest one comes alone.

    Args:
        target_batch: Samples wanted between two optimizer steps; at least 1.
        largest_micro_batch: Largest batch that fits; at least 1.
        fits: Whether a smaller micro-batch runs and fits; all do where it is not given.

    Raises:
        UsageError: If a number is no positive whole number.

    Example:
        >>> [plan.text for plan in plan_accumulation(256, 100)]
        ['micro-batch 64 x 4 accumulation steps = 256']
        >>> [plan.text for plan in plan_accumulation(127, 100)][-1]
        'micro-batch 64 x 2 accumulation steps = 128, not the 127 asked for'

    """
    for name, number in (("target_batch", target_batch), ("largest_micro_batch", largest_micro_batch)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UsageError(f"accumulation: {name} must be a whole number of at least 1, got {number!r}")
    accepts = fits if fits is not None else (lambda _micro_batch: True)
    exact = _exact(target_batch, largest_micro_batch, accepts)
    if exact is not None and (exact.steps == 1 or exact.micro_batch * 2 > largest_micro_batch):
        return (exact,)
    nearest = _nearest(target_batch, largest_micro_batch, accepts)
    return tuple(plan for plan in (exact, nearest) if plan is not None)


def _exact(target: int, largest: int, fits: Callable[[int], bool]) -> AccumulationPlan | None:
    """Return the plan with the largest micro-batch that divides ``target`` and fits."""
    divisors = {
        divisor for low in range(1, int(target**0.5) + 1) if target % low == 0 for divisor in (low, target // low)
    }
    for micro_batch in sorted(divisors, reverse=True):
        if micro_batch <= largest and fits(micro_batch):
            return AccumulationPlan(target_batch=target, micro_batch=micro_batch, steps=target // micro_batch)
    return None


def _nearest(target: int, largest: int, fits: Callable[[int], bool]) -> AccumulationPlan | None:
    """Return the plan nearest to ``target`` among the upper half of the micro-batches that fit."""
    top = min(largest, target)
    lowest = max(1, (largest + 1) // 2, top - _MICRO_BATCHES_TRIED + 1)
    plans = [
        AccumulationPlan(target_batch=target, micro_batch=micro_batch, steps=max(1, round(target / micro_batch)))
        for micro_batch in range(top, lowest - 1, -1)
    ]
    # A stable sort: of plans equally near, the one with the fewest steps stays first.
    plans.sort(key=lambda plan: abs(plan.effective_batch - target))
    return next((plan for plan in plans if fits(plan.micro_batch)), None)
