"""What operators keep for the backward pass."""

from __future__ import annotations

import pytest

from dnnmem_tune.operators.differentiation import (
    GradientRule,
    gradient_rule,
    known_operators,
    register_rule,
)
from dnnmem_tune.operators.memory_pattern import pattern_bytes
from dnnmem_tune.operators.scratch import KernelTarget

TARGET = KernelTarget(compute_capability=(8, 0), num_sms=108, threads_per_sm=2048)


def test_the_most_used_operators_have_a_rule() -> None:
    """Each is differentiated by one rule, or known to have no gradient."""
    with_gradient = [name for name in known_operators() if (rule := gradient_rule(name)) and rule.gradients]

    assert len(with_gradient) >= 80


@pytest.mark.parametrize(
    ("operator", "wanted", "kept"),
    [("Conv", 1, ("x0",)), ("Conv", 2, ()), ("Relu", 0, ("y0",)), ("Mul", 0, ("x1",)), ("Add", 0, ())],
)
def test_gradients_take_what_their_formula_has(operator: str, wanted: int, kept: tuple[str, ...]) -> None:
    """DNNMem's Table 3: convolutions keep their input, rectifiers their output, sums nothing."""
    rule = gradient_rule(operator)

    assert rule is not None
    assert rule.gradients[wanted] == kept


def test_two_rules_for_one_operator_are_a_mistake() -> None:
    """The second is refused."""
    with pytest.raises(ValueError, match=r"^operator 'Relu' has a rule already$"):
        register_rule("Relu", GradientRule(gradients={}))


@pytest.mark.parametrize(
    ("sizes", "events", "nbytes"),
    [
        ([100], "0", 256),
        ([256, 512, 256], "0,1,-1,2", 768),
        ([512, 256, 512, 256], "0,1,-1,2,-2,3", 768),
        ([0, 256], "0,1", 256),
        ([], "", 0),
    ],
)
def test_the_planned_block_is_packed_best_fit(sizes: list[int], events: str, nbytes: int) -> None:
    """By hand: the gap that wastes least, else behind the last tensor."""
    assert pattern_bytes(sizes, events, TARGET) == nbytes
