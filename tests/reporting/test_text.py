"""What a person reads."""

from __future__ import annotations

import io

from rich.console import Console

from dnnmem_tune.decisions.batch_size import largest_batch
from dnnmem_tune.decisions.verdict import Verdict
from dnnmem_tune.estimate.devices import DeviceProfile
from dnnmem_tune.estimate.estimator import Estimator
from dnnmem_tune.estimate.report import MemoryEstimate
from dnnmem_tune.ir.trace import Coverage
from dnnmem_tune.reporting.text import TextReport
from dnnmem_tune.reporting.words import notes_on
from dnnmem_tune.units import GIB, MIB
from tests.builders import device, job_trace


def _estimate(
    activation_bytes: int = 200 * MIB, card: DeviceProfile | None = None, coverage: Coverage | None = None
) -> MemoryEstimate:
    trace = job_trace(weight_bytes=100 * MIB, activation_bytes=activation_bytes, coverage=coverage)
    return Estimator(trace, card or device()).at(1)


def _written(terminal: bool, estimate: MemoryEstimate) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=80, highlight=False)
    TextReport(console).estimate(estimate, workload="train.py", params={"width": 4})
    return stream.getvalue()


def test_output_that_is_no_terminal_has_no_escapes_no_boxes_and_no_trailing_spaces() -> None:
    """It goes to a file, a pipe or a log."""
    text = _written(False, _estimate())

    assert "\x1b" not in text
    assert "─" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_terminal_gets_tables_in_its_width() -> None:
    """And colours."""
    text = _written(True, _estimate())

    assert "─" in text
    assert "\x1b[" in text


def test_headline_names_the_job_and_the_card() -> None:
    """So that a saved report can be told from another."""
    assert _written(False, _estimate()).splitlines()[:2] == [
        "train.py with width=4 on test card (1.00 GiB, compute capability 8.0)",
        "Batch 1 fits: needs 400.0 MiB of device memory, 624.0 MiB below the limit of 1.00 GiB.",
    ]


def test_narrow_fit_is_called_narrow() -> None:
    """4 MiB to spare and 10 MiB unknown: the reader must be told to leave a margin."""
    estimate = _estimate(820 * MIB, device(context_uncertainty_bytes=10 * MIB))

    assert notes_on(estimate) == [
        "It fits by 4.0 MiB, which is less than what is not known: the device peak may be 10.0 MiB higher. "
        "Leave a margin (--safety 1%) to be safe."
    ]


def test_what_is_not_known_is_told() -> None:
    """Each gap in the coverage is a sentence."""
    coverage = Coverage(
        unknown_operators={"aten::foo": 2},
        host_reads={"train.py:12": 1},
        bounded={"aten::nonzero": 1},
        notes=("torch.compile was left out",),
    )

    notes = notes_on(_estimate(coverage=coverage))

    assert notes == [
        "There is no memory rule for aten::foo; only their outputs are counted.",
        "The workload reads values from the GPU (train.py:12); they are placeholders here, so sizes or branches "
        "that depend on them may differ.",
        "The outputs of aten::nonzero depend on values; they are counted as large as they can be.",
        "torch.compile was left out",
    ]


def test_values_that_fit_beyond_one_that_does_not_are_told() -> None:
    """GIVEN a dip in memory just above the boundary THEN the report says so."""
    stream = io.StringIO()

    def probe(value: int) -> Verdict:
        fits = value <= 100 or value == 104
        return (Verdict.fits if fits else Verdict.exceeds)(
            peak_bytes=10 * MIB * (100 if fits and value > 100 else value), limit_bytes=GIB
        )

    result = largest_batch(probe)
    TextReport(Console(file=stream)).batch_size(result, device(), workload="train.py", params={})

    assert result.also_fit_above == (104,)
    assert "Memory is not monotone here: 104 would fit as well, beyond 101, which does not" in stream.getvalue()


def test_search_that_ended_at_its_bound_says_so() -> None:
    """Otherwise the bound would be taken for the card's."""
    stream = io.StringIO()
    result = largest_batch(lambda _value: Verdict.fits(peak_bytes=MIB, limit_bytes=GIB), maximum=64)

    TextReport(Console(file=stream)).batch_size(result, device(), workload="train.py", params={})

    lines = stream.getvalue().splitlines()
    assert lines[1:3] == ["Largest batch that fits: 64", "Why: every batch up to 64, the largest allowed, fits."]
