"""What an estimate, a search and a comparison answer, on jobs whose memory is known by hand.

The fake job holds 100 MiB of weights and 20 MiB for each sample; the card has 1 GiB, of which the
context takes 100 MiB. So 924 MiB are left, and (924 - 100) / 20 = 41.2 samples fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dnnmem_tune
from dnnmem_tune import EstimationSession
from dnnmem_tune.api import Bounds
from dnnmem_tune.errors import TraceError, UsageError, WorkloadError
from dnnmem_tune.ir.trace import Coverage
from dnnmem_tune.units import GIB, MIB
from tests.builders import FakeWorkload, device

Serve = Callable[[FakeWorkload], FakeWorkload]
CARD = device()


def test_estimate_gives_four_peaks_in_bytes(serve: Serve) -> None:
    """100 MiB + 4 x 20 MiB, in every metric of the allocator; the context on top for the device."""
    serve(FakeWorkload())

    estimate = dnnmem_tune.estimate("fake", batch_size=4, gpu=CARD)

    assert estimate.peak_requested_bytes == 180 * MIB
    assert estimate.peak_allocated_bytes == 180 * MIB
    assert estimate.peak_reserved_bytes == 180 * MIB
    assert estimate.peak_device_bytes == 280 * MIB
    assert estimate.fits is True


def test_one_estimate_costs_one_trace(serve: Serve) -> None:
    """A fit for every batch size takes three, which nobody asked for yet."""
    fake = serve(FakeWorkload())

    dnnmem_tune.estimate("fake", batch_size=32, gpu=CARD)

    assert [request.batch_size for request in fake.requests] == [32]


def test_processes_are_ended_when_a_session_closes(serve: Serve) -> None:
    """A forgotten worker holds hundreds of megabytes."""
    fake = serve(FakeWorkload())

    dnnmem_tune.estimate("fake", batch_size=2, gpu=CARD)

    assert fake.closed >= 1


def test_session_answers_many_batches_and_cards_from_one_fit(serve: Serve) -> None:
    """Cards of one compute capability share their traces."""
    fake = serve(FakeWorkload())
    with EstimationSession("fake") as session:
        for batch_size in (2, 3, 5, 7, 11, 13, 20, 40):
            for total_bytes in (GIB, 2 * GIB):
                estimate = session.estimate(batch_size, device(total_bytes))
                assert estimate.peak_requested_bytes == (100 + 20 * batch_size) * MIB

    assert len(fake.requests) == 4
    assert len(fake.tracings) == 1


def test_another_capability_is_traced_anew(serve: Serve) -> None:
    """It takes other kernels."""
    fake = serve(FakeWorkload())
    with EstimationSession("fake") as session:
        session.estimate(2, device(compute_capability=(8, 0)))
        session.estimate(2, device(compute_capability=(9, 0)))

    assert [tracing.compute_capability for tracing in fake.tracings] == [(8, 0), (9, 0)]


def test_safety_lowers_the_limit(serve: Serve) -> None:
    """A quarter of 1 GiB stays unused: 924 - 256 - 100 leaves 28.4 samples."""
    serve(FakeWorkload())

    result = dnnmem_tune.max_batch_size("fake", gpu=CARD, safety=0.25)

    assert (result.largest_batch, result.first_too_large) == (28, 29)


def test_largest_batch_and_the_first_that_does_not_fit(serve: Serve) -> None:
    """By hand: 41 samples take 920 of 924 MiB."""
    fake = serve(FakeWorkload())

    result = dnnmem_tune.max_batch_size("fake", gpu=CARD)

    assert (result.largest_batch, result.first_too_large) == (41, 42)
    assert result.headroom_bytes == 4 * MIB
    assert result.estimate is not None
    assert result.estimate.batch_size == 41
    assert result.reason.startswith(
        "batch 42 would take 1.02 GiB of device memory if there were room, 16.0 MiB above"
    )
    assert len(fake.requests) == 4, "two for the fit, one that checks it near the answer, one at batch 1"


@pytest.mark.parametrize(
    ("bounds", "largest", "first_too_large"),
    [
        ({"maximum": 16}, 16, None),
        ({"multiple_of": 8}, 40, 48),
        ({"power_of_two": True}, 32, 64),
        ({"minimum": 40}, 41, 42),
        ({"maximum": 10**12}, 41, 42),
    ],
)
def test_bounds_of_the_search(
    serve: Serve, bounds: dict[str, int], largest: int, first_too_large: int | None
) -> None:
    """Each bound on the job whose largest batch is 41."""
    serve(FakeWorkload())

    result = dnnmem_tune.max_batch_size("fake", gpu=CARD, **bounds)  # type: ignore[arg-type]  # one at a time

    assert (result.largest_batch, result.first_too_large) == (largest, first_too_large)


def test_not_even_one_fits(serve: Serve) -> None:
    """1 GiB of weights leaves no room for a batch."""
    serve(FakeWorkload(weight_bytes=GIB))

    result = dnnmem_tune.max_batch_size("fake", gpu=CARD)

    assert (result.largest_batch, result.first_too_large, result.estimate) == (None, 1, None)
    assert result.reason.startswith("even batch 1 would take 1.12 GiB of device memory")


def test_batch_one_may_not_run(serve: Serve) -> None:
    """Batch norm over one value raises; the search goes on from 2 and says so."""
    serve(FakeWorkload(runs=lambda batch_size, _params: batch_size >= 2))

    result = dnnmem_tune.max_batch_size("fake", gpu=CARD)

    assert (result.smallest_runnable, result.largest_batch) == (2, 41)


@pytest.mark.parametrize(("multiple", "largest"), [(2, 40), (3, 39), (4, 40), (8, 40)])
def test_workload_may_run_at_multiples_only(serve: Serve, multiple: int, largest: int) -> None:
    """41 samples fit the card and do not run: the answer must be one that does."""
    serve(FakeWorkload(runs=lambda batch_size, _params: batch_size % multiple == 0))

    result = dnnmem_tune.max_batch_size("fake", gpu=CARD)

    assert result.largest_batch == largest
    assert result.first_too_large == largest + multiple


def test_answer_that_does_not_run_is_not_given(serve: Serve) -> None:
    """GIVEN a workload that runs at 1 and at even batches THEN a run refuses 41, and 40 is given."""
    serve(FakeWorkload(runs=lambda batch_size, _params: batch_size == 1 or batch_size % 2 == 0))

    result = dnnmem_tune.max_batch_size("fake", gpu=CARD)

    assert result.largest_batch == 40


def test_workload_that_never_runs_ends_in_its_own_error(serve: Serve) -> None:
    """And not in "does not fit"."""
    serve(FakeWorkload(runs=lambda _batch_size, _params: False))

    with pytest.raises(WorkloadError, match=r"^train.py:7: ValueError: cannot run at batch 1$"):
        dnnmem_tune.max_batch_size("fake", gpu=CARD)


def test_trace_that_hangs_ends_the_search(serve: Serve) -> None:
    """Asking again at another batch size would hang again."""
    fake = serve(FakeWorkload(failure=TraceError("the step did not end within 5 seconds")))

    with pytest.raises(TraceError, match="did not end"):
        dnnmem_tune.max_batch_size("fake", gpu=CARD)
    assert fake.requests == []


def test_unknown_operators_leave_the_answer_open(serve: Serve) -> None:
    """Unknown is not a verdict, and no largest batch is claimed."""
    serve(FakeWorkload(coverage=Coverage(unknown_operators={"aten::foo": 3})))

    result = dnnmem_tune.max_batch_size("fake", gpu=CARD)

    assert (result.largest_batch, result.first_too_large) == (None, None)
    assert "there is no memory rule for aten::foo" in result.reason


def test_another_hyperparameter_is_searched_at_a_fixed_batch(serve: Serve) -> None:
    """At batch 2 a sample of width 1 takes 20 MiB: 824 / 40 = 20.6."""
    fake = serve(FakeWorkload(accepts=("width",), scale=lambda params: params.get("width", 1)))

    result = dnnmem_tune.max_batch_size("fake", gpu=CARD, searched="width", batch_size=2)

    assert (result.searched, result.largest_value, result.first_too_large) == ("width", 20, 21)
    assert {request.batch_size for request in fake.requests} == {2}
    assert len(fake.requests) <= 8, "each look is a trace"


def test_hyperparameter_that_the_workload_refuses_above_a_value_is_bounded(serve: Serve) -> None:
    """More tokens than positions: a bound of the model, not of the card."""
    serve(FakeWorkload(accepts=("width",), runs=lambda _batch, params: params.get("width", 1) <= 5))

    result = dnnmem_tune.max_batch_size("fake", gpu=CARD, searched="width", batch_size=2)

    assert (result.largest_value, result.first_too_large) == (5, None)
    assert result.reason.startswith("the workload does not run at width 6")


def test_unknown_hyperparameter_is_refused_at_once(serve: Serve) -> None:
    """One trace, and its message."""
    fake = serve(FakeWorkload())

    with pytest.raises(UsageError, match=r"^this workload has no hyperparameter 'widht'$"):
        dnnmem_tune.max_batch_size("fake", gpu=CARD, searched="widht", batch_size=2)
    assert len(fake.requests) == 1


def test_target_batch_becomes_micro_batches_that_fit(serve: Serve) -> None:
    """128 samples: 32 x 4, since 41 is the most that fits."""
    serve(FakeWorkload())

    result = dnnmem_tune.max_batch_size("fake", gpu=CARD, target_batch=128)

    assert [(plan.micro_batch, plan.steps) for plan in result.plans] == [(32, 4)]
    assert not result.plans[0].traced


def test_accumulation_is_estimated_where_the_workload_takes_it(serve: Serve) -> None:
    """Gradients that are kept cost memory: with accumulation a sample takes twice as much here, so 20 fit."""
    serve(FakeWorkload(accepts=("accumulation",), scale=lambda params: min(2, params.get("accumulation", 1))))

    result = dnnmem_tune.max_batch_size("resnet50", gpu=CARD, target_batch=80)

    assert result.largest_batch == 41
    assert [(plan.micro_batch, plan.steps, plan.traced) for plan in result.plans] == [(20, 4, True)]


def test_comparison_names_the_smallest_card_that_fits(serve: Serve) -> None:
    """At batch 60: 100 + 1200 MiB and the context."""
    serve(FakeWorkload())
    cards = [device(4 * GIB, name="large"), device(GIB, name="small"), device(2 * GIB, name="middle")]

    comparison = dnnmem_tune.compare("fake", gpus=cards, batch_size=60)

    assert [card.device.name for card in comparison.devices] == ["small", "middle", "large"]
    assert [card.fits for card in comparison.devices] == [False, True, True]
    assert comparison.smallest is not None
    assert comparison.smallest.device.name == "middle"


def test_comparison_without_a_batch_gives_each_card_its_largest(serve: Serve) -> None:
    """2 GiB: (2048 - 100 - 100) / 20 = 92.4."""
    serve(FakeWorkload())

    comparison = dnnmem_tune.compare("fake", gpus=[device(2 * GIB), CARD])

    assert [card.largest.largest_batch for card in comparison.devices if card.largest] == [41, 92]


def test_comparison_of_no_card_is_refused(serve: Serve) -> None:
    """An empty list is a mistake; None means the catalogue."""
    serve(FakeWorkload())

    with pytest.raises(UsageError, match=r"^compare: no card is given"):
        dnnmem_tune.compare("fake", gpus=[])


def test_margin_that_leaves_nothing_of_a_small_card_does_not_end_a_comparison(serve: Serve) -> None:
    """The larger cards are still compared."""
    serve(FakeWorkload())

    comparison = dnnmem_tune.compare("fake", gpus=[CARD, device(4 * GIB)], batch_size=1, safety="1GiB")

    assert [card.verdict.state for card in comparison.devices] == ["unknown", "fits"]


def test_remedies_are_estimated_and_what_saves_nothing_is_left_out(serve: Serve) -> None:
    """GIVEN a built-in model where checkpointing halves activations and precision changes nothing."""
    serve(
        FakeWorkload(
            accepts=("precision", "checkpointing", "optimizer", "foreach", "accumulation"),
            scale=lambda params: 0.5 if params.get("checkpointing") else 1.0,
        )
    )
    with EstimationSession("resnet50") as session:
        remedies = session.remedies(60, CARD)

    texts = [remedy.change.text for remedy in remedies]
    assert texts[0] == "activation checkpointing (checkpointing=True)"
    assert remedies[0].verdict.peak_bytes == (100 + 100 + 600) * MIB
    assert any(text.startswith("micro-batches of at most 41, 2 or more accumulated") for text in texts)
    assert any(remedy.change.gpu is not None and remedy.enough for remedy in remedies)
    assert not any(
        "precision" in remedy.change.params or "optimizer" in remedy.change.params for remedy in remedies
    )


def test_changes_that_are_not_enough_alone_are_tried_together(serve: Serve) -> None:
    """GIVEN that each halves the activations THEN both together make batch 150 fit: 100 + 750 MiB."""
    serve(
        FakeWorkload(
            accepts=("precision", "checkpointing", "optimizer", "foreach", "accumulation"),
            scale=lambda params: (
                (0.5 if params.get("checkpointing") else 1) * (0.5 if params.get("precision") else 1)
            ),
        )
    )
    with EstimationSession("resnet50") as session:
        remedies = session.remedies(150, CARD)

    together = [remedy for remedy in remedies if len(remedy.change.params) == 2]
    assert [remedy.enough for remedy in together] == [True]
    assert together[0].verdict.peak_bytes == (100 + 100 + 750) * MIB


def test_workload_of_unknown_parameters_is_offered_none(serve: Serve) -> None:
    """A function that takes no precision must not be told to set it."""
    serve(FakeWorkload())

    def build(batch_size: int, device: object) -> None: ...

    with EstimationSession(build) as session:
        remedies = session.remedies(60, CARD)

    assert all(not remedy.change.params for remedy in remedies)


def test_options_that_cannot_be_meant_are_refused_before_anything_starts(serve: Serve) -> None:
    """With one line each."""
    fake = serve(FakeWorkload())
    cases: dict[str, dict[str, Any]] = {
        "the workload must be a reference such as 'train.py:build', a built-in name or a function, got ''": {
            "workload": ""
        },
        "recorder must be one of auto, fake, emulated, got 'x'": {"recorder": "x"},
        "conv_workspace must be one of none, limited, benchmark, got 'x'": {"conv_workspace": "x"},
        "time_limit must be a number above 0, got 0": {"time_limit": 0},
        "memory_limit must be a number above 0, got True": {"memory_limit": True},
    }
    for message, options in cases.items():
        with pytest.raises(UsageError) as error:
            EstimationSession(**{"workload": "fake", **options})
        assert str(error.value) == message
    with pytest.raises(UsageError, match=r"^no GPU is given; pass gpu='V100-16GB'"):
        dnnmem_tune.estimate("fake", batch_size=1, gpu="")
    assert fake.tracings == []


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_batch_sizes_that_cannot_be_meant_are_refused_before_anything_starts(serve: Serve, value: int) -> None:
    """In each function that takes one."""
    fake = serve(FakeWorkload())

    for call in (
        lambda: dnnmem_tune.estimate("fake", batch_size=value, gpu=CARD),
        lambda: dnnmem_tune.max_batch_size("fake", gpu=CARD, minimum=value),
        lambda: dnnmem_tune.max_batch_size("fake", gpu=CARD, maximum=value),
        lambda: dnnmem_tune.max_batch_size("fake", gpu=CARD, target_batch=value),
        lambda: dnnmem_tune.compare("fake", gpus=[CARD], batch_size=value),
    ):
        with pytest.raises(UsageError, match="must be a whole number of at least 1, got"):
            call()
    assert fake.requests == []


def test_bounds_that_contradict_each_other_are_refused() -> None:
    """Where they are made, with the two numbers."""
    with pytest.raises(UsageError, match=r"maximum=4 is below minimum=8; pass maximum >= minimum$"):
        Bounds(minimum=8, maximum=4)
