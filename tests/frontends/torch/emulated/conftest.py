"""The CUDA build of PyTorch to record with, as in ``tests/emulator``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dnnmem_tune.emulator.card import Card
from dnnmem_tune.emulator.installation import Installation, find_installation
from dnnmem_tune.errors import UnsupportedError
from dnnmem_tune.frontends.torch.emulated.client import EmulatedRecorder

REPOSITORY = Path(__file__).resolve().parents[4]
A100 = Card(
    name="NVIDIA A100-SXM4-40GB",
    total_bytes=42_505_273_344,
    context_bytes=430 << 20,
    compute_capability=(8, 0),
    num_sms=108,
)


@pytest.fixture(scope="session")
def installation() -> Installation:
    """The CUDA build of PyTorch to test with; without one the tests that need it are skipped."""
    try:
        return find_installation(os.environ.get("DNNMEM_TORCH_PYTHON"))
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def open_recorder(installation: Installation) -> Iterator[Callable[..., EmulatedRecorder]]:
    """Open a recorder; all are closed at the end, and one of the same workload is opened once."""
    opened: dict[str, EmulatedRecorder] = {}

    def open_one(workload: str | Path, card: Card = A100) -> EmulatedRecorder:
        key = f"{workload} {card}"
        if key not in opened:
            opened[key] = EmulatedRecorder(str(workload), card=card, installation=installation, time_limit=60)
        return opened[key]

    yield open_one
    for recorder in opened.values():
        recorder.close()


@pytest.fixture
def run_python(installation: Installation) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program in the interpreter that has the CUDA build."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        return subprocess.run(
            [installation.python, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
            check=True,
        )

    return run
