"""Which operators work in place, as the release's own totals show."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_operator_is_planned_as_mxnet_plans_it(interpreter: str) -> None:
    """A wrong entry of the table gives one block of 16 MiB too many or too few."""
    done = subprocess.run(
        [interpreter, str(Path(__file__).parent / "programs" / "operator_plans.py")],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]

    assert len({name for name, *_ in rows}) > 100
    assert [row for row in rows if row[2] != row[3]] == []
