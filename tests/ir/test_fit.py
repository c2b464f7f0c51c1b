"""One trace for every batch size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.ir.fit import Mismatch, confirms, fit_traces
from dnnmem_tune.ir.size import Polynomial, Scratch, Size
from dnnmem_tune.ir.trace import Category, MemoryTrace, Operation, Phase, Storage

whole = st.integers(-(1 << 30), 1 << 30)
polynomials = st.builds(Polynomial, whole, whole, whole)


def trace_of(*sizes: Size, names: tuple[str, ...] = ()) -> MemoryTrace:
    """One forward operator a storage, each freed at the end."""
    names = names or tuple(f"aten::op{index}" for index in range(len(sizes)))
    return MemoryTrace(
        storages=tuple(Storage(size, Category.ACTIVATION, index) for index, size in enumerate(sizes)),
        operations=tuple(Operation(name, "block.0", Phase.FORWARD, 0) for name in names),
        events=(*range(len(sizes)), *(~index for index in range(len(sizes)))),
    )


@given(first=polynomials, second=polynomials)
def test_three_traces_give_back_the_polynomials_they_were_made_of(first: Polynomial, second: Polynomial) -> None:
    """A loss over all pairs in the batch is quadratic, and still fitted without a fraction."""
    traces = {b: trace_of(Polynomial(first.at(b)), Polynomial(second.at(b))) for b in (8, 16, 24)}

    fitted = fit_traces(traces)

    assert isinstance(fitted, MemoryTrace)
    for batch_size in (1, 2, 37, 1000):
        assert [storage.size for storage in fitted.storages] == [first, second]
        expected = trace_of(Polynomial(first.at(batch_size)), Polynomial(second.at(batch_size)))
        assert confirms(fitted, batch_size, expected) is None


@given(constant=whole, linear=whole, batch_size=st.integers(2, 10_000))
def test_two_traces_give_every_affine_size(constant: int, linear: int, batch_size: int) -> None:
    """The usual case: bytes per example plus bytes of the model."""
    size = Polynomial(constant, linear)

    fitted = fit_traces({b: trace_of(Polynomial(size.at(b))) for b in (8, 16)})

    assert isinstance(fitted, MemoryTrace)
    assert confirms(fitted, batch_size, trace_of(Polynomial(size.at(batch_size)))) is None


def test_the_arguments_of_a_scratch_rule_are_fitted_one_by_one() -> None:
    """Scratch is no polynomial, but what its rule is given is."""

    def at(batch_size: int) -> MemoryTrace:
        return trace_of(Scratch("reduction", (Polynomial(4 * batch_size), Polynomial(768)), "float32"))

    fitted = fit_traces({8: at(8), 16: at(16)})

    assert isinstance(fitted, MemoryTrace)
    expected = Scratch("reduction", (Polynomial(0, 4), Polynomial(768)), "float32")
    assert fitted.storages[0].size == expected


def test_a_size_with_a_fraction_per_example_is_no_polynomial() -> None:
    """Half a byte an example means that the size is rounded somewhere, so a fit would be wrong in between."""
    mismatch = fit_traces({8: trace_of(Polynomial(100)), 16: trace_of(Polynomial(104))})
    assert isinstance(mismatch, Mismatch)
    assert mismatch.reason == "aten::op0 in 'block.0': the size is no polynomial of the batch size"


def test_other_events_are_named_with_the_operator_where_they_part() -> None:
    """The reader must see which operator depends on the batch size."""
    longer = trace_of(Polynomial(1), Polynomial(1))
    mismatch = fit_traces({8: trace_of(Polynomial(1)), 16: longer})
    assert isinstance(mismatch, Mismatch)
    assert "the events differ from number 1 on, near aten::op0" in mismatch.reason


def test_another_operator_at_the_same_place_is_a_mismatch() -> None:
    """The same sizes by chance are no proof: above some batch another kernel was chosen."""
    first = trace_of(Polynomial(8), names=("aten::addmm",))
    second = trace_of(Polynomial(16), names=("aten::mm",))
    mismatch = fit_traces({8: first, 16: second})
    assert isinstance(mismatch, Mismatch)
    assert "comes from aten::addmm at one batch size and from aten::mm at another" in mismatch.reason


def test_a_fit_is_refuted_by_a_trace_of_another_size() -> None:
    """The third trace is what makes two traces enough."""
    fitted = fit_traces({8: trace_of(Polynomial(8)), 16: trace_of(Polynomial(16))})
    assert isinstance(fitted, MemoryTrace)

    refuted = confirms(fitted, 12, trace_of(Polynomial(13)))

    assert refuted == Mismatch("aten::op0 in 'block.0': another size than fitted at batch 12")


def test_one_trace_cannot_be_fitted() -> None:
    """A fit from one trace would be an assumption."""
    with pytest.raises(ValueError, match="two or three traces are needed, got 1"):
        fit_traces({8: trace_of(Polynomial(1))})


def test_the_fit_keeps_what_a_storage_is_for() -> None:
    """Only sizes change."""
    base = trace_of(Polynomial(8))
    optional = replace(base, storages=(replace(base.storages[0], optional=True, category=Category.WORKSPACE),))

    fitted = fit_traces({8: optional, 16: optional})

    assert isinstance(fitted, MemoryTrace)
    assert fitted.storages[0].optional
    assert fitted.storages[0].category is Category.WORKSPACE
