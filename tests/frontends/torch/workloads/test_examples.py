"""What users copy works: the examples, and the sample configurations."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dnnmem_tune.frontends.torch.workloads.huggingface import load_huggingface

ROOT = Path(__file__).parents[4]
CONFIGURATIONS = ROOT / "configs" / "workloads"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("script", r"batch 128 fits: \d+\.\d MiB on V100-16GB\n"),
        ("training_step", r" +fp32: largest batch \d+ on RTX 3060\n"),
        ("huggingface", r" +16 tokens: +\d+\.\d MiB, fits on A10G\n"),
    ],
)
def test_an_example_runs(name: str, answer: str) -> None:
    """In its smoke mode, from any directory."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"estimate_{name}.py"), "--smoke"],
        capture_output=True, text=True, check=True, cwd="/",
    )  # fmt: skip
    assert re.fullmatch(answer, done.stdout)


def test_sample_configurations_have_the_published_number_of_parameters() -> None:
    """The table of their README is read and counted again; every file is in it."""
    rows = re.findall(
        r"^\| `(.+\.json)` \| ([\d,]+)", (CONFIGURATIONS / "README.md").read_text(), flags=re.MULTILINE
    )
    assert sorted(name for name, _ in rows) == sorted(path.name for path in CONFIGURATIONS.glob("*.json"))
    for name, count in rows:
        with torch.device("meta"):
            model = load_huggingface(CONFIGURATIONS / name).model()
        assert sum(parameter.numel() for parameter in model.parameters()) == int(count.replace(",", "")), name
