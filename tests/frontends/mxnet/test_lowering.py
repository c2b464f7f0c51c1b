"""The events of a job in each way to run it, on a graph small enough to add up by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from dnnmem_tune.frontends.mxnet.batches import fit_job
from dnnmem_tune.frontends.mxnet.lowering import BoundJob, lower
from dnnmem_tune.frontends.mxnet.settings import Execution, Settings
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category, MemoryTrace
from tests.frontends.mxnet.graphs import classifier

BATCH = 8
WEIGHTS_BYTES = (4 * 3 + 4) * 4


def _job(batch_size: int = BATCH, itemsize: int = 4) -> BoundJob:
    return BoundJob(
        network=classifier(batch_size, itemsize),
        loss=None,
        inputs=frozenset({"data", "label"}),
        framework="mxnet 1.9.1",
    )


def _lower(settings: Settings, *, itemsize: int = 4) -> MemoryTrace:
    return lower(_job(itemsize=itemsize), settings, batch_size=BATCH, num_steps=3)


def _bytes_by_category(trace: MemoryTrace) -> Counter[Category]:
    total: Counter[Category] = Counter()
    for storage in trace.storages:
        assert isinstance(storage.size, Polynomial)
        total[storage.category] += storage.size.constant
    return total


def test_executor_takes_everything_when_it_is_bound() -> None:
    """Data, weights, gradients and blocks before the first step; after it the optimizer's state, and no more."""
    trace = _lower(Settings(optimizer="sgd(momentum=0.9)"))
    bound, first, second = (mark.event for mark in trace.marks[:3])

    found = _bytes_by_category(trace)
    assert found[Category.INPUT] == (BATCH * 3 + BATCH) * 4
    assert found[Category.WEIGHT] == found[Category.WEIGHT_GRADIENT] == WEIGHTS_BYTES
    assert found[Category.OPTIMIZER_STATE] == WEIGHTS_BYTES
    assert first - bound == 2  # the momenta of weight and bias
    assert second == first


@pytest.mark.parametrize(("optimizer", "num_states"), [("sgd", 0), ("adam", 2), ("rmsprop(centered=True)", 3)])
def test_optimizer_keeps_as_many_arrays_as_its_class_creates(optimizer: str, num_states: int) -> None:
    """Each of a weight's size, from the first step on."""
    assert _bytes_by_category(_lower(Settings(optimizer=optimizer)))[Category.OPTIMIZER_STATE] == (
        num_states * WEIGHTS_BYTES
    )


def test_half_precision_keeps_a_copy_of_the_weights_and_states_in_single() -> None:
    """``multi_precision``: master copy and momentum have four bytes an element, weights two."""
    found = _bytes_by_category(_lower(Settings(precision="fp16"), itemsize=2))

    assert found[Category.WEIGHT] == WEIGHTS_BYTES // 2
    assert found[Category.OPTIMIZER_STATE] == 2 * WEIGHTS_BYTES


def test_inference_has_neither_gradients_nor_states() -> None:
    """Only what the forward needs is taken."""
    found = _bytes_by_category(_lower(Settings(training=False)))

    assert found[Category.WEIGHT_GRADIENT] == found[Category.OPTIMIZER_STATE] == 0


def test_lamb_writes_its_direction_to_an_array_that_comes_and_goes() -> None:
    """One temporary for each weight and step, given back at once."""
    trace = _lower(Settings(optimizer="lamb"))

    assert _bytes_by_category(trace)[Category.TEMPORARY] == 3 * WEIGHTS_BYTES


@pytest.mark.parametrize("execution", [Execution.HYBRIDIZED, Execution.IMPERATIVE])
def test_gluon_steps_leave_nothing_behind_but_batch_and_result(execution: Execution) -> None:
    """After the second step as much is live as after the third."""
    trace = _lower(Settings(execution=execution))
    live, after_step = 0, []
    marks = {mark.event for mark in trace.marks}
    for position, code in enumerate(trace.events, 1):
        size = trace.storages[code if code >= 0 else ~code].size
        assert isinstance(size, Polynomial)
        live += size.constant if code >= 0 else -size.constant
        if position in marks:
            after_step.append(live)

    assert after_step[-1] == after_step[-2]


def test_static_allocation_keeps_its_blocks() -> None:
    """From the second step on only batch and result are taken."""
    trace = _lower(Settings(execution=Execution.STATIC))
    second, third = (mark.event for mark in trace.marks[2:4])

    taken = [trace.storages[code] for code in trace.events[second:third] if code >= 0]

    assert {storage.category for storage in taken} == {Category.INPUT, Category.ACTIVATION}
    assert len(taken) == 3  # data, label, output


def test_imperative_trace_says_that_it_is_a_band() -> None:
    """A reader learns that threads decide when memory returns."""
    assert "Imperative execution" in _lower(Settings(execution=Execution.IMPERATIVE)).coverage.notes[0]


def test_fitted_shapes_are_those_of_a_binding() -> None:
    """Bindings at three batch sizes give the graph at any other."""
    fitted = fit_job({batch_size: _job(batch_size) for batch_size in (8, 16, 12)})

    assert fitted is not None
    assert fitted.at(100).network.entries == classifier(100).entries


def test_network_whose_shapes_are_not_affine_is_not_fitted() -> None:
    """A third binding that disagrees means that every batch size is bound."""
    assert fit_job({8: _job(8), 16: _job(16), 12: _job(13)}) is None
