"""The comparison with a real run, whose measurements are given here: there is no GPU in a test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dnnmem_tune.cli.gpu_run import _peaks
from dnnmem_tune.cli.main import make_app
from dnnmem_tune.units import GIB, MIB
from tests.builders import FakeWorkload

Serve = Callable[[FakeWorkload], FakeWorkload]

MEASURED: dict[str, Any] = {
    "gpu": {
        "name": "NVIDIA Test",
        "total_bytes": 8 * GIB,
        "compute_capability": [8, 0],
        "num_sms": 108,
        "occupied_bytes": 0,
    },
    "torch": "2.13.0+cu130",
    "out_of_memory": False,
    "peaks": {
        "requested_bytes": 180 * MIB,
        "allocated_bytes": 180 * MIB,
        "reserved_bytes": 200 * MIB,
        "device_bytes": None,
    },
}


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets what the run on the GPU measured."""

    def install(**changes: Any) -> None:
        monkeypatch.setattr("dnnmem_tune.cli.check._run_on_gpu", lambda *_arguments: {**MEASURED, **changes})

    return install


def test_all_four_peaks_are_compared(serve: Serve, measure: Callable[..., None]) -> None:
    """180 MiB estimated: equal in two metrics, 10 % below in reserved, and one that was not measured."""
    serve(FakeWorkload())
    measure()

    result = CliRunner().invoke(make_app(), ["check", "--model", "resnet50", "--batch", "4"])

    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert "requested 180.0 MiB 180.0 MiB +0.00 %" in lines
    assert "reserved 180.0 MiB 200.0 MiB -10.00 %" in lines
    assert any(line.startswith("device ") and line.endswith(" not measured") for line in lines)
    assert "Batch 4 ran on the card (torch 2.13.0+cu130); the estimate: it fits." in lines


def test_run_that_is_out_of_memory_ends_in_three(serve: Serve, measure: Callable[..., None]) -> None:
    """And the JSON tells it apart from what the estimate says."""
    serve(FakeWorkload())
    measure(out_of_memory=True)

    result = CliRunner().invoke(make_app(), ["check", "--model", "resnet50", "--batch", "4", "--json"])

    document = json.loads(result.stdout)
    assert result.exit_code == 3
    assert (document["fits"], document["out_of_memory"]) == (True, True)
    assert document["relative_errors"]["reserved_bytes"] == pytest.approx(-0.1)
    assert document["relative_errors"]["device_bytes"] is None


def test_device_peak_is_reserved_and_what_lies_outside_the_allocator() -> None:
    """By hand: 900 in use, 100 before and 500 reserved leave 300 for the context; at most 700 were reserved."""
    stats = {"reserved_bytes.all.peak": 700, "reserved_bytes.all.current": 500, "allocated_bytes.all.peak": 600}

    peaks = _peaks(stats, used=900, used_before=100)

    assert peaks == {
        "requested_bytes": None,
        "allocated_bytes": 600,
        "reserved_bytes": 700,
        "device_bytes": 1000,
    }
    assert _peaks(stats, used=None, used_before=100)["device_bytes"] is None


def test_what_the_workload_prints_does_not_spoil_the_answer(tmp_path: Path) -> None:
    """The run answers in JSON on standard output, which the workload writes to as well."""
    program = (
        "import dnnmem_tune.cli.gpu_run as run\n"
        "run.measure = lambda request: print('noise') or {'error': request['workload']}\n"
        "run.main()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        input='{"workload": "w", "alloc_conf": null}',
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )

    assert done.stdout == '{"error": "w"}\n'
    assert done.stderr == "noise\n"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit(9)", "the run on the GPU died without an answer (exit code 9)"),
        ('print(\'{"error": "no such step"}\')', "no such step"),
    ],
)
def test_run_without_measurements_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, message: str
) -> None:
    """Whatever happened to the process."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr("dnnmem_tune.cli.check.sys.executable", str(python))

    result = CliRunner().invoke(make_app(), ["check", "--model", "resnet50", "--batch", "4"])

    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"dnnmem: {message}\n")


def test_run_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the time limit."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    python.chmod(0o755)
    monkeypatch.setattr("dnnmem_tune.cli.check.sys.executable", str(python))

    result = CliRunner().invoke(
        make_app(), ["check", "--model", "resnet50", "--batch", "4", "--time-limit", "0.5"]
    )

    assert result.exit_code == 1
    assert result.stderr == "dnnmem: the run on the GPU did not end within 0.5 seconds (--time-limit)\n"
