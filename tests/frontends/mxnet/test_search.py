"""Searches and guards take MXNet workloads as they take any other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dnnmem_tune import estimate, max_batch_size
from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.mxnet.interpreter import VARIABLE
from dnnmem_tune.units import MIB

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _use_interpreter(interpreter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, interpreter)


def test_largest_batch_fits_and_the_next_does_not() -> None:
    """The search's answer is what single estimates say."""
    result = max_batch_size("squeezenet1.1", gpu="2GiB", framework="mxnet")

    assert result.largest_batch is not None
    for batch_size, fits in ((result.largest_batch, True), (result.largest_batch + 1, False)):
        assert estimate("squeezenet1.1", batch_size=batch_size, gpu="2GiB", framework="mxnet").fits is fits


def test_convolution_workspace_widens_the_interval() -> None:
    """What cuDNN chooses for the shared temporary space is not known without the card, and is said so."""
    found = estimate("vgg11", batch_size=8, gpu="T4", framework="mxnet")

    causes = {reason.cause: reason for reason in found.interval().reasons}
    assert causes["convolution workspace"].above_bytes > 0
    assert "MXNet memory pool" in found.provenance.allocator


def test_published_measurement_lies_in_the_interval() -> None:
    """ResNet-34, batch 32, SGD with momentum, fp32 took 2,190 to 2,295 MB on a GPU (apache/mxnet#9024)."""
    found = estimate("resnet34_v1", batch_size=32, gpu="V100-16GB", framework="mxnet").interval()

    assert found.low_bytes < 2190 * MIB
    assert found.high_bytes > 2295 * MIB


def test_recorder_of_another_framework_is_refused() -> None:
    """MXNet binds its own networks."""
    with pytest.raises(UsageError, match=r"recorder is 'auto', got 'emulated'"):
        estimate("vgg11", batch_size=8, gpu="T4", framework="mxnet", recorder="emulated")


def test_function_of_this_process_is_refused() -> None:
    """It cannot travel to an interpreter with other packages."""
    with pytest.raises(UsageError, match=r"is given by reference, such as 'net\.py:build', got function"):
        estimate(lambda: None, batch_size=8, gpu="T4", framework="mxnet")


@pytest.mark.slow
def test_example_runs() -> None:
    """In its smoke mode, from any directory; the guard refuses what does not fit."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "mxnet_sweep.py"), "--smoke"],
        capture_output=True, text=True, check=True, cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert re.search(
        r"hybridized batch 2048: exceeds\nlargest batch of squeezenet1\.1 on a T4: \d+\n$", done.stdout
    )
