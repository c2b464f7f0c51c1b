"""A wanted batch from micro-batches that fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.decisions.accumulation import plan_accumulation
from dnnmem_tune.errors import UsageError


@given(target=st.integers(1, 400), largest=st.integers(1, 500), smallest=st.integers(1, 4))
def test_exact_plan_is_the_largest_divisor_that_fits(target: int, largest: int, smallest: int) -> None:
    """Equal to trying every micro-batch from the top."""
    plans = plan_accumulation(target, largest, fits=lambda micro_batch: micro_batch >= smallest)

    divisors = [m for m in range(min(target, largest), smallest - 1, -1) if target % m == 0]
    exact = [plan for plan in plans if plan.exact]
    assert [plan.micro_batch for plan in exact[:1]] == divisors[:1]
    assert all(smallest <= plan.micro_batch <= largest for plan in plans)
    assert len(plans) <= 2


def test_whole_batch_that_fits_needs_no_accumulation() -> None:
    """A plan of one step is said in words of its own."""
    (plan,) = plan_accumulation(64, 100)

    assert (plan.micro_batch, plan.steps) == (64, 1)
    assert plan.text == "batch 64 fits as it is; no accumulation is needed"


def test_prime_batch_gets_an_exact_plan_and_a_near_one_that_uses_the_card() -> None:
    """127 steps of one sample are right and useless; 128 in two steps is what a user wants to hear of."""
    exact, near = plan_accumulation(127, 100)

    assert exact.text == "micro-batch 1 x 127 accumulation steps = 127"
    assert near.text == "micro-batch 64 x 2 accumulation steps = 128, not the 127 asked for"


def test_no_plan_where_no_micro_batch_runs() -> None:
    """Nothing is invented."""
    assert plan_accumulation(7, 3, fits=lambda _micro_batch: False) == ()


def test_huge_batches_are_planned_at_once() -> None:
    """The candidates are never listed."""
    (plan,) = plan_accumulation(2**31, 2**30)

    assert (plan.micro_batch, plan.steps) == (2**30, 2)


@pytest.mark.parametrize("target", [0, -1, 1.5, True])
def test_target_that_is_no_batch_is_refused(target: object) -> None:
    """True and 1.5 are numbers to Python and no batches to anyone."""
    with pytest.raises(UsageError) as error:
        plan_accumulation(target, 8)  # type: ignore[arg-type]  # what a caller may pass

    assert str(error.value) == f"accumulation: target_batch must be a whole number of at least 1, got {target!r}"
