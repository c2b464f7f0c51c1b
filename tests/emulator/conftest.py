"""A build of the emulator for a CUDA build of PyTorch, where one is to be had.

DNNMEM_TORCH_PYTHON names an interpreter with such a build; without it, the one running the tests is tried.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dnnmem_tune.emulator.cache import ensure_build
from dnnmem_tune.emulator.installation import Installation, find_installation
from dnnmem_tune.errors import UnsupportedError

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def installation() -> Installation:
    """The CUDA build of PyTorch to test with; without one the tests that need it are skipped."""
    try:
        return find_installation(os.environ.get("DNNMEM_TORCH_PYTHON"))
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def built(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished build, in the user's own cache so that a second run of the tests finds it."""
    return ensure_build(installation)


@pytest.fixture(scope="session")
def run_python(installation: Installation) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program in the interpreter that has the CUDA build."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        return subprocess.run(
            [installation.python, *arguments], capture_output=True, text=True, timeout=300, env=environment
        )

    return run


@pytest.fixture
def own_python() -> Callable[..., subprocess.Popen[str]]:
    """Start a program in this interpreter, in a process group of its own."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip

    return start
