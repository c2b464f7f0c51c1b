"""The search examples run, in a smaller form."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    """Return what an example prints."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "needs"), [("optuna_digits.py", "optuna"), ("ray_digits.py", "ray")])
def test_an_example_prints_what_was_launched_and_vetoed_and_why(name: str, needs: str) -> None:
    """A reader copies it, so that it has to work as it stands."""
    for package in (needs, "torch", "sklearn"):
        pytest.importorskip(package)

    output = run(name, "--launched", "3")

    assert sum(" launched" in f" {line}" and "error 0." in line for line in output.splitlines()) == 3
    vetoed = [line for line in output.splitlines() if "vetoed" in line and "width" in line]
    assert all("above the limit of 1.00 GiB" in line for line in vetoed)
    assert "traces" in output
