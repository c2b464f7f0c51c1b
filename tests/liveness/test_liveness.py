"""What holds for the memory of every graph, against a recount that knows nothing of the planner."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.ir.graph import Graph, GraphOperation, Tensor, Workspace
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category, MemoryTrace
from dnnmem_tune.liveness.lower import lower
from dnnmem_tune.liveness.schedule import as_written, first_ready_first
from dnnmem_tune.liveness.storages import plan_storages

SIZES = (0, 100, 100, 100, 300)


def tensor(nbytes: int, *, resident: bool = False, alias_of: int | None = None) -> Tensor:
    """Return a tensor of constant size."""
    return Tensor(
        name="t", size=Polynomial(nbytes), category=Category.ACTIVATION, resident=resident, alias_of=alias_of
    )


def chain(*sizes: int, forwards: bool = False) -> Graph:
    """Return operators in a row, each of which reads what the one before wrote; the first reads a resident."""
    return Graph(
        tensors=(tensor(sizes[0], resident=True), *(tensor(nbytes) for nbytes in sizes[1:])),
        operations=tuple(
            GraphOperation(
                kind="op", inputs=(index,), outputs=(index + 1,), forwards=((0, 0),) if forwards else ()
            )
            for index in range(len(sizes) - 1)
        ),
    )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs with residents, aliases, forwarding, control edges, several outputs and results."""
    tensors = [tensor(draw(st.sampled_from(SIZES)), resident=True) for _ in range(draw(st.integers(1, 3)))]
    operations = []
    for number in range(draw(st.integers(1, 12))):
        known = list(range(len(tensors)))
        inputs = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
        outputs = []
        for _ in range(draw(st.integers(0, 2))):
            alias = draw(st.sampled_from([None, None, None, inputs[0]]))
            nbytes = draw(st.sampled_from(SIZES)) if alias is None else tensors[alias].size.constant
            outputs.append(len(tensors))
            tensors.append(tensor(nbytes, alias_of=alias))
        pairs = [(output, given) for output in range(len(outputs)) for given in range(len(inputs))]
        operations.append(
            GraphOperation(
                kind=f"op{number}",
                inputs=inputs,
                outputs=tuple(outputs),
                after=tuple(draw(st.lists(st.integers(0, number - 1), max_size=2))) if number else (),
                forwards=tuple(draw(st.lists(st.sampled_from(pairs), max_size=3))) if pairs else (),
                workspaces=(Workspace(size=Polynomial(50)),) if draw(st.booleans()) else (),
            )
        )
    results = tuple(draw(st.lists(st.sampled_from(range(len(tensors))), max_size=2)))
    return Graph(tensors=tuple(tensors), operations=tuple(operations), results=results)


def roots(graph: Graph) -> list[int]:
    """Return for each tensor the one whose value it shares."""
    found = list(range(len(graph.tensors)))
    for index, value in enumerate(graph.tensors):
        if value.alias_of is not None:
            found[index] = found[value.alias_of]
    return found


def lifetimes(graph: Graph, order: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return for each value written in the step when it is first and last needed, in operators, both inclusive."""
    root = roots(graph)
    spans: dict[int, tuple[int, int]] = {}
    for position, number in enumerate(order):
        operation = graph.operations[number]
        for index in (*operation.outputs, *operation.inputs):
            if graph.tensors[root[index]].resident:
                continue
            start, _ = spans.get(root[index], (position, position))
            spans[root[index]] = (start, position)
    for index in graph.results:
        if root[index] in spans:
            spans[root[index]] = (spans[root[index]][0], len(order))
    return spans


def peak(trace: MemoryTrace) -> int:
    """Return the largest number of bytes requested."""
    live = most = 0
    for code in trace.events:
        size = trace.storages[code if code >= 0 else ~code].size
        assert isinstance(size, Polynomial)
        live += size.constant if code >= 0 else -size.constant
        most = max(most, live)
    return most


@given(graph=graphs())
def test_every_operator_runs_once_and_after_all_it_needs(graph: Graph) -> None:
    """An order that broke a dependency would free memory that is still read."""
    order = first_ready_first(graph)

    assert sorted(order) == list(range(len(graph.operations)))
    position = {number: place for place, number in enumerate(order)}
    for number, operation in enumerate(graph.operations):
        for other, earlier in enumerate(graph.operations):
            if set(earlier.outputs) & set(operation.inputs) or other in operation.after:
                assert position[other] < position[number]


@given(graph=graphs(), seed=st.integers(0, 9))
def test_without_forwarding_the_peak_is_that_of_the_lifetimes(graph: Graph, seed: int) -> None:
    """The recount adds up whatever value is needed at each operator, with no notion of references."""
    order = first_ready_first(graph) if seed % 2 else as_written(graph)
    spans = lifetimes(graph, order)
    resident = sum(value.size.constant for value in graph.tensors if value.resident)
    expected = resident
    for position, number in enumerate(order):
        live = [index for index, (start, stop) in spans.items() if start <= position <= stop]
        work = 50 * len(graph.operations[number].workspaces)
        expected = max(expected, resident + work + sum(graph.tensors[index].size.constant for index in live))

    assert peak(lower(graph, order, num_steps=1, forwarding=False)) == expected


@given(graph=graphs())
def test_no_two_values_lie_in_one_storage_while_both_are_needed(graph: Graph) -> None:
    """Forwarding hands a storage on; it must not overwrite what somebody still reads."""
    order = first_ready_first(graph)
    plan = plan_storages(graph, order)
    spans = lifetimes(graph, order)
    values = [index for index in spans if plan.owner[index] is not None]

    for left in values:
        for right in values:
            if left < right and plan.owner[left] == plan.owner[right]:
                (first, last), (start, stop) = sorted((spans[left], spans[right]))
                # An operator may write over an input that it is the last to read.
                assert last <= start
                assert (first, last) != (start, stop)


@given(graph=graphs())
def test_aliases_lie_where_their_value_lies_and_residents_stay_put(graph: Graph) -> None:
    """A view that got a storage of its own would count a tensor twice."""
    plan = plan_storages(graph, first_ready_first(graph))

    for index, value in enumerate(graph.tensors):
        if value.alias_of is not None:
            assert plan.owner[index] == plan.owner[value.alias_of]
        if value.resident and value.size.constant:
            assert plan.owner[index] == index


@given(graph=graphs())
def test_a_forwarded_tensor_has_the_size_of_its_storage(graph: Graph) -> None:
    """A framework forwards only what fits exactly."""
    plan = plan_storages(graph, first_ready_first(graph))

    for index, owner in enumerate(plan.owner):
        if owner is not None:
            assert graph.tensors[owner].size == graph.tensors[index].size


@given(graph=graphs())
def test_forwarding_never_raises_the_peak(graph: Graph) -> None:
    """It only ever saves a request."""
    order = first_ready_first(graph)

    assert peak(lower(graph, order, num_steps=2)) <= peak(lower(graph, order, num_steps=2, forwarding=False))


@given(graph=graphs(), num_steps=st.integers(1, 3))
def test_a_step_leaves_residents_and_results_and_nothing_else(graph: Graph, num_steps: int) -> None:
    """A storage that is never freed grows the job with every step."""
    trace = lower(graph, first_ready_first(graph), num_steps=num_steps)
    live = {code for code in trace.events if code >= 0} - {~code for code in trace.events if code < 0}
    root = roots(graph)
    results = {root[index] for index in graph.results if not graph.tensors[root[index]].resident}
    residents = [value for value in graph.tensors if value.resident and value.size.constant]

    assert len([mark for mark in trace.marks if mark.name.startswith("step")]) == num_steps
    assert len(live) <= len(residents) + len(results)
    assert len(live) >= len(residents) + bool([index for index in results if graph.tensors[index].size.constant])


def test_a_chain_holds_two_neighbours_at_a_time() -> None:
    """GIVEN a -> b -> c with 100, 200 and 400 bytes THEN the peak holds the resident, b and c."""
    assert peak(lower(chain(100, 200, 400), (0, 1), num_steps=1)) == 700


def test_a_chain_that_forwards_runs_in_one_storage() -> None:
    """GIVEN equal sizes and forwarding THEN the first output serves all, and the resident input is left alone."""
    assert peak(lower(chain(100, 100, 100, 100, forwards=True), (0, 1, 2), num_steps=1)) == 200


def test_a_value_read_twice_is_not_forwarded() -> None:
    """GIVEN x * x THEN two references to x keep its storage from being taken over."""
    graph = Graph(
        tensors=(tensor(100, resident=True), tensor(100), tensor(100)),
        operations=(
            GraphOperation(kind="Relu", inputs=(0,), outputs=(1,)),
            GraphOperation(kind="Mul", inputs=(1, 1), outputs=(2,), forwards=((0, 0), (0, 1))),
        ),
    )

    assert peak(lower(graph, (0, 1), num_steps=1)) == 300


def test_operators_run_as_they_become_ready_not_as_they_are_written() -> None:
    """GIVEN two roots and a follower of the first THEN both roots run before it."""
    tensors = (tensor(1), tensor(1))
    graph = Graph(
        tensors=tensors,
        operations=(
            GraphOperation(kind="root", outputs=(0,)),
            GraphOperation(kind="follower", inputs=(0,)),
            GraphOperation(kind="root", outputs=(1,)),
        ),
    )

    assert first_ready_first(graph) == (0, 2, 1)
    assert as_written(graph) == (0, 1, 2)


def test_a_cycle_is_refused_by_name() -> None:
    """Operators that wait for each other never run; silence would drop them from the estimate."""
    operations = (GraphOperation(kind="Merge", after=(1,)), GraphOperation(kind="NextIteration", after=(0,)))

    with pytest.raises(ValueError, match=r"operator 0 \(Merge\) is part of a cycle"):
        first_ready_first(Graph(tensors=(), operations=operations))


def test_a_list_in_the_wrong_order_is_refused() -> None:
    """An exporter's file must list operators so that they can run in turn."""
    graph = chain(1, 1, 1)
    backwards = replace(graph, operations=graph.operations[::-1])

    with pytest.raises(ValueError, match="operator 0 is listed before operator 1, which it needs"):
        as_written(backwards)


def test_a_tensor_that_nothing_writes_is_refused() -> None:
    """It would have no storage and be counted as nothing."""
    graph = Graph(tensors=(tensor(1),), operations=(GraphOperation(kind="op", inputs=(0,)),))

    with pytest.raises(ValueError, match="operator 0 reads tensor 0, which nothing writes"):
        lower(graph, (0,), num_steps=1)


def test_a_shuffled_graph_gives_a_valid_trace() -> None:
    """GIVEN many operators that depend on nothing THEN any order is a valid one."""
    graph = Graph(
        tensors=tuple(tensor(10) for _ in range(20)),
        operations=tuple(GraphOperation(kind="root", outputs=(index,)) for index in range(20)),
    )
    order = random.Random(1).sample(range(20), 20)

    assert peak(lower(graph, order, num_steps=1)) == 10
