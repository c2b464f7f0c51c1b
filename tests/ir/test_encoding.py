"""Traces as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.ir.encoding import FORMAT, decode_trace, encode_trace
from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.ir.trace import Category, Coverage, Mark, MemoryTrace, Operation, Phase, Storage

numbers = st.integers(0, 1 << 50)
polynomials = st.builds(Polynomial, numbers, numbers, numbers)
scratches = st.builds(Scratch, st.text(min_size=1), st.lists(polynomials).map(tuple), st.text())
counts = st.dictionaries(st.text(), st.integers(1, 9), max_size=3)


@st.composite
def traces(draw: st.DrawFn) -> MemoryTrace:
    """Any trace that passes its own check."""
    operations = draw(
        st.lists(
            st.builds(Operation, st.text(), st.text(), st.sampled_from(Phase), st.integers(-1, 3)), min_size=1
        )
    )
    storage = st.builds(
        Storage,
        polynomials | scratches,
        st.sampled_from(Category),
        st.integers(0, len(operations) - 1),
        st.booleans(),
    )
    storages = draw(st.lists(storage, max_size=8))
    freed = [index for index in range(len(storages)) if draw(st.booleans())]
    return MemoryTrace(
        storages=tuple(storages),
        operations=tuple(operations),
        events=(*range(len(storages)), *(~index for index in freed)),
        marks=(Mark("build", 0),),
        coverage=Coverage(
            num_operations=draw(st.integers(0, 9)),
            unknown_operators=draw(counts),
            host_reads=draw(counts),
            bounded=draw(counts),
            notes=tuple(draw(st.lists(st.text()))),
        ),
        framework="torch 2.13.0",
        recorder="fake tensors",
        batch_sizes=(8, 16, 12),
    )


@given(trace=traces())
def test_a_trace_survives_the_pipe_and_the_cache(trace: MemoryTrace) -> None:
    """What the worker wrote is what the caller reads."""
    assert decode_trace(json.loads(json.dumps(encode_trace(trace)))) == trace


@pytest.mark.parametrize("document", [None, [], {}, {"format": FORMAT}, {"format": FORMAT, "storages": [[1]]}])
def test_what_is_no_trace_is_refused(document: Any) -> None:
    """A damaged cache entry must be told from a trace, and never half read."""
    with pytest.raises(ValueError, match="this is no encoded trace"):
        decode_trace(document)


def test_a_trace_of_another_format_is_refused() -> None:
    """After an upgrade old entries are rebuilt, not misread."""
    with pytest.raises(ValueError, match=f"the trace has format 0, this release reads {FORMAT}"):
        decode_trace({"format": 0})


def test_a_trace_that_frees_before_it_allocates_is_refused() -> None:
    """An allocator that is fed impossible events would answer nonsense."""
    trace = MemoryTrace(
        storages=(Storage(Polynomial(1), Category.ACTIVATION, 0),),
        operations=(Operation("aten::mm", "", Phase.FORWARD, 0),),
        events=(~0,),
    )
    with pytest.raises(ValueError, match="event 0 frees storage 0 a second time or too early"):
        decode_trace(encode_trace(trace))
