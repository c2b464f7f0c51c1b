"""Sizes that depend on the batch size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.ir.size import Polynomial


@given(constant=st.integers(0, 1 << 40), linear=st.integers(0, 1 << 30), quadratic=st.integers(0, 1 << 20))
def test_a_size_grows_by_its_linear_part_and_the_pairs(constant: int, linear: int, quadratic: int) -> None:
    """From B to B + 1 a batch gains one example and B new pairs."""
    size = Polynomial(constant, linear, quadratic)

    assert size.at(0) == constant
    for batch_size in (1, 2, 7):
        assert size.at(batch_size + 1) - size.at(batch_size) == linear + quadratic * batch_size
