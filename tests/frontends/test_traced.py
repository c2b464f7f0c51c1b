"""One traced workload for every batch size, with a recorder of our own types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dnnmem_tune.errors import DnnMemError, TraceError, WorkloadError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.traced import TracedWorkload
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category, MemoryTrace, Operation, Phase, Storage

REQUEST = RecordRequest(workload="mlp", batch_size=1, params={"width": 8})


def trace_of(*sizes: int) -> MemoryTrace:
    """A trace that holds every storage at once."""
    return MemoryTrace(
        storages=tuple(Storage(Polynomial(size), Category.ACTIVATION, 0) for size in sizes),
        operations=(Operation("aten::mm", "", Phase.FORWARD, 0),),
        events=tuple(range(len(sizes))),
    )


class Recorder:
    """Answers requests by a function of the batch size, and writes down what it was asked."""

    def __init__(self, answer: Callable[[int], MemoryTrace | DnnMemError]) -> None:
        self.asked: list[list[int]] = []
        self.closed = False
        self._answer = answer

    def attempt(self, requests: Sequence[RecordRequest]) -> list[MemoryTrace | DnnMemError]:
        """Answer each request."""
        self.asked.append([request.batch_size for request in requests])
        return [self._answer(request.batch_size) for request in requests]

    def close(self) -> None:
        """Note that the worker would end."""
        self.closed = True


class Store:
    """A store in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, MemoryTrace] = {}

    def load(self, key: dict[str, Any]) -> MemoryTrace | None:
        """Return what was saved."""
        return self.kept.get(repr(key))

    def save(self, key: dict[str, Any], trace: MemoryTrace) -> None:
        """Keep it."""
        self.kept[repr(key)] = trace


def affine(batch_size: int) -> MemoryTrace:
    """Weights of 1000 bytes and 40 bytes an example."""
    return trace_of(1000, 40 * batch_size)


def sizes_at(trace: MemoryTrace, batch_size: int) -> list[int]:
    """The bytes of every storage."""
    return [storage.size.at(batch_size) for storage in trace.storages if isinstance(storage.size, Polynomial)]


def test_three_traces_answer_every_batch_size() -> None:
    """Two make the fit and the batch size asked for confirms it; after that nothing is traced."""
    recorder = Recorder(affine)
    workload = TracedWorkload(recorder, REQUEST)

    answers = {batch_size: sizes_at(workload.trace_for(batch_size), batch_size) for batch_size in (32, 2, 1000)}

    assert recorder.asked == [[8, 16, 32]]
    assert answers == {b: [1000, 40 * b] for b in answers}
    assert workload.trace_for(32).batch_sizes == (8, 16, 32)
    assert workload.unfitted_reason == ""


def test_batch_one_has_a_trace_of_its_own() -> None:
    """Sums over an extent of one are skipped, so batch 1 is no point of the fit."""
    recorder = Recorder(lambda b: trace_of(1000) if b == 1 else affine(b))
    workload = TracedWorkload(recorder, REQUEST)

    assert sizes_at(workload.trace_for(1), 1) == [1000]
    assert sizes_at(workload.trace_for(5), 5) == [1000, 200]
    assert recorder.asked == [[1], [8, 16, 5]]


def test_pairs_in_the_batch_take_a_fourth_trace() -> None:
    """A contrastive loss is quadratic in the batch size."""
    recorder = Recorder(lambda b: trace_of(4 * b * b))
    workload = TracedWorkload(recorder, REQUEST)

    assert sizes_at(workload.trace_for(100), 100) == [40_000]
    assert sizes_at(workload.trace_for(7), 7) == [196]
    assert recorder.asked == [[8, 16, 100], [24]]


def test_what_does_not_fit_a_polynomial_is_traced_at_each_batch_size() -> None:
    """No fit is better than a wrong one."""
    recorder = Recorder(lambda b: trace_of(-(-b // 32) * 4096))
    workload = TracedWorkload(recorder, REQUEST)

    assert sizes_at(workload.trace_for(100), 100) == [4 * 4096]
    assert sizes_at(workload.trace_for(33), 33) == [2 * 4096]
    assert "no polynomial" in workload.unfitted_reason or "another size" in workload.unfitted_reason
    assert recorder.asked[-1] == [33]


def test_a_workload_that_runs_at_some_batch_sizes_only_is_traced_where_it_runs() -> None:
    """Batch norm over one value raises; so does a batch that cannot be split."""
    recorder = Recorder(lambda b: affine(b) if b % 10 == 0 else WorkloadError("batch is no multiple of 10"))
    workload = TracedWorkload(recorder, REQUEST)

    assert sizes_at(workload.trace_for(20), 20) == [1000, 800]
    with pytest.raises(WorkloadError, match="batch is no multiple of 10"):
        workload.trace_for(15)
    assert "does not run at every batch size" in workload.unfitted_reason


def test_a_workload_that_never_runs_raises_its_own_error() -> None:
    """The user reads their own error, not one about fitting."""
    workload = TracedWorkload(Recorder(lambda _b: WorkloadError("train.py:3: ValueError: no data")), REQUEST)
    with pytest.raises(WorkloadError, match=r"train\.py:3: ValueError: no data"):
        workload.trace_for(4)


def test_a_trace_that_hangs_is_not_tried_again_at_other_batch_sizes() -> None:
    """Each try would cost the whole time limit."""
    recorder = Recorder(lambda _b: TraceError("did not finish within 60 s"))
    workload = TracedWorkload(recorder, REQUEST)
    with pytest.raises(TraceError, match="did not finish within 60 s"):
        workload.trace_for(4)
    assert len(recorder.asked) == 1


def test_a_fit_that_an_exact_trace_refutes_is_given_up() -> None:
    """A workload that accumulates above batch 64 fits below, and is wrong above."""
    recorder = Recorder(lambda b: affine(min(b, 64)))
    workload = TracedWorkload(recorder, REQUEST)
    assert sizes_at(workload.trace_for(32), 128) == [1000, 40 * 128]

    assert not workload.confirm(128)

    assert sizes_at(workload.trace_for(128), 128) == [1000, 40 * 64]


def test_a_second_run_reads_the_store_and_traces_nothing() -> None:
    """A study that is started again must not pay again."""
    store = Store()
    TracedWorkload(Recorder(affine), REQUEST, store=store).trace_for(32)
    recorder = Recorder(affine)

    again = TracedWorkload(recorder, REQUEST, store=store)

    assert sizes_at(again.trace_for(48), 48) == [1000, 1920]
    assert recorder.asked == []


def test_another_source_makes_another_key() -> None:
    """A changed train.py must be traced again."""
    store = Store()
    TracedWorkload(Recorder(affine), REQUEST, store=store, fingerprint="a").trace_for(32)
    recorder = Recorder(affine)

    TracedWorkload(recorder, REQUEST, store=store, fingerprint="b").trace_for(32)

    assert recorder.asked == [[8, 16, 32]]


def test_leaving_the_context_ends_the_worker() -> None:
    """No process is left behind."""
    recorder = Recorder(affine)
    with TracedWorkload(recorder, REQUEST):
        pass
    assert recorder.closed
