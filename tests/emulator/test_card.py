"""PyTorch on the emulated card reports what can be worked out by hand."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("card_checks.py")
NAMES = [
    line.split()[1].partition("(")[0]
    for before, line in zip(PROGRAM.read_text().splitlines(), PROGRAM.read_text().splitlines()[1:], strict=False)
    if line.startswith("def ") and (before.startswith("@check") or before.lstrip().endswith("# fmt: skip"))
]


@pytest.fixture(scope="module")
def outcomes(
    built: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> dict[str, dict[str, str]]:
    """What each check said, from one run of the program."""
    done = run_python(str(PROGRAM), str(built))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    return {line["check"]: line for line in lines}


@pytest.mark.parametrize("name", NAMES)
def test_card(name: str, outcomes: dict[str, dict[str, str]]) -> None:
    """Each check of ``card_checks.py`` holds."""
    outcome = outcomes[name]
    if outcome["outcome"] == "skipped":
        pytest.skip(outcome["why"])
    assert outcome["outcome"] == "passed", outcome["why"]


def test_every_check_is_run(outcomes: dict[str, dict[str, str]]) -> None:
    """A check that the list of names misses would never be looked at."""
    assert set(NAMES) == set(outcomes)
