import json
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnmem_tune.decisions.verdict import VerdictState
from dnnmem_tune.errors import UnknownDeviceError, UsageError, WorkloadError
from dnnmem_tune.guard import FormulaTracers, MemoryGuard
from dnnmem_tune.guard.store import CacheWarning

MIB = 1 << 20
LIMIT = 100 * MIB


def linear_peak(params: Mapping[str, Any], batch_size: int) -> int:
    """Ten units for the model, one for each sample, of `width` MiB / 10."""
    return int(params["width"]) * MIB // 10 * (10 + batch_size)


def guard_of(peak: Callable[[Mapping[str, Any], int], int] = linear_peak, **options: Any) -> MemoryGuard:
    """Return a guard over a formula with a limit of 100 MiB."""
    return MemoryGuard(tracers=[FormulaTracers(peak, LIMIT)], **options)


def test_verdict_has_peak_limit_and_signed_violation() -> None:
    """10 MiB for the model and 1 MiB for each sample of 100 MiB: 90 samples fit exactly."""
    guard = guard_of()

    fits = guard.check({"width": 10, "batch_size": 90})
    exceeds = guard.check({"width": 10, "batch_size": 140})

    assert (fits.state, fits.peak_bytes, fits.limit_bytes, fits.violation) == (
        VerdictState.FITS,
        LIMIT,
        LIMIT,
        0.0,
    )
    assert exceeds.state is VerdictState.EXCEEDS
    assert exceeds.violation == pytest.approx(0.5)
    assert guard.largest_batch({"width": 10}).largest_batch == 90


@pytest.mark.parametrize(
    "same",
    [
        {"batch_size": 8.0, "width": 10.0},
        {"width": np.int64(10), "batch_size": np.float32(8)},
        {"width": np.array(10), "batch_size": np.array(8.0)},
    ],
)
def test_an_equal_configuration_is_never_traced_twice(same: dict[str, Any]) -> None:
    """Samplers hand out 1, 1.0 and numpy scalars in any order for one and the same configuration."""
    guard = guard_of()
    first = guard.check({"width": 10, "batch_size": 8})

    assert guard.check(same) == first
    assert guard.counts.num_traces == 1


def test_batch_size_is_free_once_a_configuration_is_traced() -> None:
    """A search over batch sizes costs one trace."""
    guard = guard_of()

    for batch_size in range(1, 200):
        guard.check({"width": 10, "batch_size": batch_size})

    assert guard.counts.num_traces == 1


def test_many_threads_that_ask_at_once_cause_one_trace() -> None:
    """n_jobs workers start with the same default configuration."""
    barrier = threading.Barrier(8)

    def slow_peak(params: Mapping[str, Any], batch_size: int) -> int:
        time.sleep(0.005)
        return linear_peak(params, batch_size)

    guard = guard_of(slow_peak)

    def ask(batch_size: int) -> VerdictState:
        barrier.wait()
        return guard.check({"width": 10, "batch_size": batch_size}).state

    with ThreadPoolExecutor(8) as threads:
        states = list(threads.map(ask, range(1, 9)))

    assert states == [VerdictState.FITS] * 8
    assert guard.counts.num_traces == 1


def logged_peak(params: Mapping[str, Any], batch_size: int) -> int:
    """Note each trace (the first batch of a signature is 1) in a file that all processes share."""
    if batch_size == 1:
        with Path(os.environ["TRACE_LOG"]).open("a") as log:
            log.write(json.dumps(params["width"]) + "\n")
        time.sleep(0.2)
    return linear_peak(params, batch_size)


def _ask_in_process(cache_dir: str, queue: Any) -> None:
    guard = guard_of(logged_peak, cache_dir=cache_dir)
    queue.put([guard.check({"width": width, "batch_size": 8}).peak_bytes for width in (10, 20)])


def test_processes_share_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four workers of one study, started at once: two configurations, two traces in all."""
    log = tmp_path / "log"
    monkeypatch.setenv("TRACE_LOG", str(log))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_ask_in_process, args=(str(tmp_path / "cache"), queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    answers = [queue.get(timeout=30) for _ in workers]
    for worker in workers:
        worker.join()

    assert answers == [[18 * MIB, 36 * MIB]] * 4
    assert sorted(log.read_text().split()) == ["10", "20"]


def test_a_later_process_learns_from_the_traces_on_disk(tmp_path: Path) -> None:
    """A study that is resumed the next day traces nothing again."""
    guard_of(cache_dir=tmp_path).check({"width": 10, "batch_size": 8})

    later = guard_of(cache_dir=tmp_path)
    later.check({"width": 10, "batch_size": 16})

    assert later.counts.num_traces == 0
    assert later.counts.num_loaded == 1


def test_a_damaged_cache_costs_a_trace_and_no_verdict(tmp_path: Path) -> None:
    """A full disk or a killed writer leaves half a file; it is made again."""
    guard_of(cache_dir=tmp_path).check({"width": 10, "batch_size": 8})
    for path in tmp_path.rglob("*.json*"):
        path.write_text("{ this is no JSON\n")

    later = guard_of(cache_dir=tmp_path)

    assert later.check({"width": 10, "batch_size": 8}).state is VerdictState.FITS
    assert later.counts.num_traces == 1


def test_a_cache_that_cannot_be_written_is_reported_and_done_without(tmp_path: Path) -> None:
    """A read-only home must not stop a study."""
    (tmp_path / "file").write_text("")
    guard = guard_of(cache_dir=tmp_path / "file")

    with pytest.warns(CacheWarning, match="cannot be used .* traces are not shared with other processes"):
        verdict = guard.check({"width": 10, "batch_size": 8})

    assert verdict.state is VerdictState.FITS


def test_learning_rate_causes_no_trace_once_it_is_known_to_be_inert() -> None:
    """Three values over a factor of ten, on one architecture; from then on any value on any architecture."""
    guard = guard_of()
    for rate in (1e-4, 3e-3, 1e-1):
        guard.check({"width": 10, "lr": rate, "batch_size": 8})
    assert guard.inert_parameters()["lr"] == "inert"
    before = guard.counts.num_traces

    for rate in np.geomspace(1e-5, 0.9, 20):
        guard.check({"width": 10, "lr": rate, "batch_size": 8})

    assert (before, guard.counts.num_traces) == (3, 3)


def test_with_a_space_two_traces_show_that_all_rates_are_inert() -> None:
    """The ends of the ranges are traced when an architecture comes back, all continuous parameters at once."""
    guard = guard_of()
    guard.expect({"lr": (1e-5, 1e-1), "decay": (1e-6, 1e-2), "dropout": (0.0, 0.5)})
    generator = np.random.default_rng(0)

    for _ in range(30):
        params = {
            "width": int(generator.integers(2, 6)),
            "lr": generator.uniform(1e-5, 1e-1),
            "decay": generator.uniform(1e-6, 1e-2),
            "dropout": generator.uniform(0.01, 0.5),
            "batch_size": 4,
        }
        guard.check(params)

    assert guard.counts.num_traces == 4 + 2


def test_an_active_parameter_among_inert_ones_is_found() -> None:
    """The probe at the ends moves all parameters; where that changes memory, each is moved alone."""

    def peak(params: Mapping[str, Any], batch_size: int) -> int:
        return linear_peak(params, batch_size) + int(params["ratio"] * 1000) * batch_size

    guard = guard_of(peak)
    guard.expect({"lr": (1e-5, 1e-1), "ratio": (0.1, 0.9)})
    for rate, ratio in ((1e-3, 0.5), (2e-3, 0.7), (3e-3, 0.5), (4e-3, 0.7)):
        verdict = guard.check({"width": 10, "lr": rate, "ratio": ratio, "batch_size": 8})
        assert verdict.peak_bytes == peak({"width": 10, "ratio": ratio}, 8)

    learnt = guard.inert_parameters()
    assert learnt["ratio"] == "changes memory"


def test_a_conclusion_that_proves_wrong_is_withdrawn() -> None:
    """Memory that jumps inside a range that looked flat: the checks find it, and nothing rests on it any more."""

    def peak(params: Mapping[str, Any], batch_size: int) -> int:
        return linear_peak(params, batch_size) + (50 * MIB if 0.02 < params["rate"] < 0.04 else 0)

    guard = guard_of(peak)
    for rate in (0.001, 0.011, 0.1):
        guard.check({"width": 10, "rate": rate, "batch_size": 8})
    for rate in np.linspace(0.0201, 0.0399, 32):
        guard.check({"width": 10, "rate": rate, "batch_size": 8})

    assert guard.inert_parameters()["rate"] == "changes memory"
    assert guard.check({"width": 10, "rate": 0.0201, "batch_size": 8}).peak_bytes == 68 * MIB


def test_a_build_that_raises_is_unknown_and_not_tried_again() -> None:
    """An unexpected exception is no verdict, and retrying it for every batch size would take the study's time."""
    calls = []

    def broken(params: Mapping[str, Any], batch_size: int) -> int:
        calls.append(params)
        raise RuntimeError("heads must divide width")

    guard = guard_of(broken)
    verdicts = [guard.check({"width": 10, "batch_size": batch}) for batch in (8, 16)]

    assert [verdict.state for verdict in verdicts] == [VerdictState.UNKNOWN] * 2
    assert verdicts[0].reason == "the formula raised RuntimeError: heads must divide width"
    assert len(calls) == 1
    assert guard.counts.num_failed == 1


def test_an_estimator_that_fails_unexpectedly_is_unknown_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A bug of ours is no veto; the log has the traceback."""

    class Dead(FormulaTracers):
        def make(self) -> Any:
            raise ConnectionResetError("the worker is gone")

    guard = MemoryGuard(tracers=[Dead(linear_peak, LIMIT)])
    verdict = guard.check({"width": 10, "batch_size": 8})

    assert verdict.state is VerdictState.UNKNOWN
    assert verdict.reason == "the estimator failed with ConnectionResetError: the worker is gone"
    assert "the estimator failed for" in caplog.text


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"width": 10}, "the parameter 'batch_size' is missing; received width"),
        ({"width": 10, "batch_size": 2.5}, "a batch size is a whole number of at least 1, got 2.5"),
        ({"width": 10, "batch_size": None}, "a batch size is a whole number of at least 1, got None"),
        ({"width": object(), "batch_size": 1}, "another process could not recognise; pass a number, text"),
        ({"batch_size": 1}, "the formula raised KeyError: 'width'"),
    ],
)
def test_parameters_that_cannot_be_judged_are_unknown_with_the_reason(params: dict[str, Any], reason: str) -> None:
    """The reason names the parameter, so that it can be put right."""
    verdict = guard_of().check(params)

    assert verdict.state is VerdictState.UNKNOWN
    assert reason in verdict.reason


def test_without_a_gpu_every_verdict_is_unknown() -> None:
    """A study may be written on a machine without a GPU; it must run, and say what is missing."""
    guard = MemoryGuard("resnet50")

    verdict = guard.check({"batch_size": 8})

    assert verdict.state is VerdictState.UNKNOWN
    assert verdict.reason.startswith("no GPU is given")
    assert guard.allows(verdict)


def test_why_nothing_can_be_judged_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt parameter would make a guard useless in silence."""
    guard = guard_of()
    for width in range(5):
        guard.check({"widht": width, "batch_size": 8})

    assert caplog.text.count("a configuration cannot be judged: the formula raised KeyError: 'width'") == 1


def test_a_card_that_is_not_there_is_refused_at_once() -> None:
    """Later it would make every verdict unknown."""
    with pytest.raises(UnknownDeviceError, match="there is no GPU named 'V100-61GB'"):
        MemoryGuard("resnet50", gpu="V100-61GB")


@pytest.mark.parametrize(("policy", "allowed", "violation"), [("run", True, 0.0), ("veto", False, 2.0**-40)])
def test_the_policy_decides_what_unknown_means(policy: Any, allowed: bool, violation: float) -> None:
    """The constraint agrees with the decision, and is never NaN."""
    guard = guard_of(unknown=policy)
    verdict = guard.check({})

    assert guard.allows(verdict) is allowed
    assert guard.violation(verdict) == violation


def test_of_several_cards_one_that_fits_is_enough() -> None:
    """The verdict is that of the smallest card that fits."""
    small, large = FormulaTracers(linear_peak, 20 * MIB), FormulaTracers(linear_peak, LIMIT)
    guard = MemoryGuard(tracers=[small, large])

    assert guard.check({"width": 10, "batch_size": 4}).limit_bytes == 20 * MIB
    assert guard.check({"width": 10, "batch_size": 50}).limit_bytes == LIMIT
    assert guard.check({"width": 10, "batch_size": 500}).state is VerdictState.EXCEEDS
    assert guard.largest_batch({"width": 10}).largest_batch == 90


def test_nested_parameters_and_fixed_ones_are_taken_together() -> None:
    """Ray configurations nest, and searches hold more than the workload takes."""

    def peak(params: Mapping[str, Any], batch_size: int) -> int:
        return int(params["model"]["width"]) * MIB + int(params["extra"]) + batch_size

    guard = guard_of(peak, batch_param="train/batch", params={"extra": 3}, ignore=["epochs"])

    verdict = guard.check({"model": {"width": 2}, "train": {"batch": 5}, "epochs": 90})

    assert verdict.peak_bytes == 2 * MIB + 3 + 5


def test_repair_reaches_the_wanted_batch_with_micro_batches_that_fit() -> None:
    """90 fit, 256 are wanted: 64 x 4."""
    plan = guard_of().repair({"width": 10, "batch_size": 256})[0]

    assert (plan.micro_batch, plan.steps, plan.exact) == (64, 4, True)


def test_repair_checks_plans_as_they_will_run() -> None:
    """Accumulated gradients stay allocated between micro-batches, so 64 no longer fit."""

    def peak(params: Mapping[str, Any], batch_size: int) -> int:
        return linear_peak(params, batch_size) + (30 * MIB if params.get("accumulate", 1) > 1 else 0)

    guard = guard_of(peak)
    plan = guard.repair({"width": 10, "batch_size": 256}, accumulation_param="accumulate")[0]

    assert (plan.micro_batch, plan.steps) == (32, 8)


def test_a_real_out_of_memory_vetoes_that_configuration_from_then_on() -> None:
    """At that batch size and above; below nothing is known."""
    guard = guard_of()
    params = {"width": 10, "batch_size": 80}
    assert guard.check(params).state is VerdictState.FITS

    guard.observe(params, out_of_memory=True)

    verdict = guard.check({"width": 10, "batch_size": 85})
    assert verdict.state is VerdictState.EXCEEDS
    assert verdict.reason == "ran out of memory at batch size 80 when it was launched"
    assert verdict.violation is not None
    assert verdict.violation > 0
    assert guard.check({"width": 10, "batch_size": 79}).state is VerdictState.FITS


def test_a_pickled_guard_is_the_same_guard_in_this_process() -> None:
    """Ray unpickles trainables and schedulers in the driver; what was traced must not be traced again."""
    guard = guard_of()
    guard.check({"width": 10, "batch_size": 8})

    assert pickle.loads(pickle.dumps(guard)) is guard


def test_a_verdict_on_a_known_configuration_takes_under_five_milliseconds() -> None:
    """A search asks thousands of times."""
    guard = guard_of()
    guard.check({"width": 10, "lr": 0.1, "batch_size": 1})

    start = time.perf_counter()
    for batch_size in range(2, 102):
        guard.check({"width": 10, "lr": 0.1, "batch_size": batch_size})

    assert (time.perf_counter() - start) / 100 < 0.005


def test_a_guard_that_was_closed_starts_again() -> None:
    """Closing frees the workers and forgets nothing."""
    with guard_of() as guard:
        guard.check({"width": 10, "batch_size": 8})

    assert guard.check({"width": 20, "batch_size": 8}).state is VerdictState.FITS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unknown": "maybe"}, r'MemoryGuard: unknown is "run" or "veto", got \'maybe\''),
        ({"workers": 0}, "MemoryGuard: workers must be a whole number of at least 1, got 0"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    """Before a study starts, not in its first trial."""
    with pytest.raises(UsageError, match=message):
        guard_of(**options)


def test_largest_batch_of_a_workload_that_does_not_run_raises_its_reason() -> None:
    """There is no batch size to answer with."""
    with pytest.raises(WorkloadError, match="the formula raised KeyError: 'width'"):
        guard_of().largest_batch({"lr": 1})
