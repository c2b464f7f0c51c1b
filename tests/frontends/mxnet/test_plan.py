"""The plan of a graph, against what can be worked out by hand."""

from __future__ import annotations

from dnnmem_tune.frontends.mxnet.bound import BoundGraph, Entry, Node
from dnnmem_tune.frontends.mxnet.plan import EXTERNAL, executor_plan
from tests.frontends.mxnet.graphs import classifier


def test_output_is_written_over_an_input_that_nobody_else_reads() -> None:
    """The softmax takes over the scores; its gradient cannot, since the caller reads the softmax."""
    plan = executor_plan(classifier())

    assert plan.block_of[3] == plan.block_of[5]
    assert plan.block_of[6] != plan.block_of[5]


def test_weights_and_their_gradients_are_outside_the_plan() -> None:
    """Variables and gradients that the caller receives have memory of their own."""
    plan = executor_plan(classifier())

    assert {plan.block_of[number] for number in (0, 1, 2, 4, 9, 10)} == {EXTERNAL}


def test_planner_counts_four_bytes_an_element_and_the_pool_gets_the_real_ones() -> None:
    """In half precision MXNet prints twice what it takes."""
    single, half = executor_plan(classifier()), executor_plan(classifier(itemsize=2))

    assert single.planned_bytes == half.planned_bytes
    assert sum(single.block_bytes) == 2 * sum(half.block_bytes)


def _chain(sizes: list[int], kind: str = "Pooling") -> BoundGraph:
    """Return nodes that each read the one before, with these many elements."""
    nodes = [Node("var", "data", (), (0,), {})]
    nodes += [Node(kind, f"node{number}", (number - 1,), (number,), {}) for number in range(1, len(sizes))]
    return BoundGraph(
        nodes=tuple(nodes),
        entries=tuple(Entry((size,), 4) for size in sizes),
        outputs=(len(sizes) - 1,),
        num_forward_outputs=1,
    )


def test_block_that_is_too_small_grows_within_a_factor_of_sixteen() -> None:
    """Three nodes need two blocks; the first is free when the third asks, and grows from 100 to 1600 elements."""
    plan = executor_plan(_chain([1, 100, 100, 1600]))

    assert plan.planned_bytes == (6400, 400)


def test_block_that_is_more_than_sixteen_times_too_small_is_left_alone() -> None:
    """One element more, and a third block is made."""
    plan = executor_plan(_chain([1, 100, 100, 1616]))

    assert plan.planned_bytes == (400, 400, 6464)


def test_larger_free_block_is_taken_before_a_smaller_one() -> None:
    """Of free blocks of 200 and 90 elements, 100 elements go into the larger."""
    plan = executor_plan(_chain([1, 200, 90, 5000, 100]))

    assert plan.block_of[4] == plan.block_of[1]


def test_reshape_shares_memory_however_many_read_it() -> None:
    """An identity needs no block of its own even when its input is read again."""
    nodes = (
        Node("var", "data", (), (0,), {}),
        Node("Pooling", "pool", (0,), (1,), {}),
        Node("Reshape", "reshape", (1,), (2,), {}),
        Node("dot", "dot", (1, 2), (3,), {}),
    )
    graph = BoundGraph(nodes=nodes, entries=(Entry((10,), 4),) * 4, outputs=(3,), num_forward_outputs=1)

    plan = executor_plan(graph)

    assert plan.block_of[1] == plan.block_of[2]
    assert len(plan.planned_bytes) == 2
