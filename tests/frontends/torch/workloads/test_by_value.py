"""A function given as an object is the same function in another process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.torch.workloads.builtin import load_builtin
from dnnmem_tune.frontends.torch.workloads.by_value import reference_of
from dnnmem_tune.frontends.torch.workloads.resolve import load_build

RUN = (
    "import sys; from dnnmem_tune.frontends.torch.workloads.resolve import load_build;"
    "print(load_build(sys.stdin.read())(2, 'cpu')())"
)


def elsewhere(reference: str, directory: Path) -> str:
    """What the workload's step returns in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=reference, capture_output=True, text=True, check=True, cwd=directory
    )
    return done.stdout.strip()


def at_the_top(batch_size: int, device: str) -> Callable[[], str]:
    """A workload that another process finds by this file."""
    return lambda: f"top {batch_size}"


class Holder:
    """Something that owns a workload."""

    @staticmethod
    def nested(batch_size: int, device: str) -> Callable[[], str]:
        """Found by its dotted name."""
        return lambda: f"nested {batch_size}"


def test_a_function_of_a_module_goes_by_file_and_name(tmp_path: Path) -> None:
    """Short, readable, and it follows edits of the file."""
    reference = reference_of(at_the_top)
    assert reference == f"{Path(__file__).resolve()}:at_the_top"
    assert elsewhere(reference, tmp_path) == "top 2"
    assert reference_of(Holder.nested) == f"{Path(__file__).resolve()}:Holder.nested"


def test_closures_and_lambdas_go_by_value(tmp_path: Path) -> None:
    """With what they hold."""
    width = 5

    def build(batch_size: int, device: str) -> Callable[[], int]:
        return lambda: width * batch_size

    assert reference_of(build).startswith("pickle:")
    assert elsewhere(reference_of(build), tmp_path) == "10"
    assert elsewhere(reference_of(lambda batch_size, device: lambda: batch_size), tmp_path) == "2"


def test_a_function_of_a_script_goes_by_value(tmp_path: Path) -> None:
    """Importing the script again would run it again, and without a guard for ever."""
    script = tmp_path / "script.py"
    script.write_text(
        "import helper_of_script\n"
        "def build(batch_size, device):\n    return lambda: helper_of_script.double(batch_size)\n"
        "from dnnmem_tune.frontends.torch.workloads.by_value import reference_of\n"
        "print(reference_of(build))\n"
    )
    (tmp_path / "helper_of_script.py").write_text("def double(x):\n    return 2 * x\n")
    made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert made.stdout.startswith("pickle:")
    assert elsewhere(made.stdout.strip(), Path("/")) == "4"


def test_a_training_step_of_a_loaded_file_goes_by_value(tmp_path: Path) -> None:
    """The file was loaded under a name that no other process can import."""
    (tmp_path / "train.py").write_text(
        "from dnnmem_tune import TrainingStep\n"
        "def model():\n    from torch import nn\n    return nn.Linear(2, 1)\n"
        "def inputs(batch_size):\n    import torch\n"
        "    return torch.ones(batch_size, 2), torch.ones(batch_size, 1)\n"
        "JOB = TrainingStep(model=model, inputs=inputs, loss='mse_loss')\n"
    )
    reference = reference_of(load_build(f"{tmp_path}/train.py:JOB"))
    assert reference.startswith("pickle:")
    assert elsewhere(reference, Path("/")) == "None"  # a step returns nothing


def test_a_builtin_workload_goes_by_name() -> None:
    """So the object and the name share a cache entry."""
    assert reference_of(load_builtin("bert-large")) == "bert-large"


def test_what_cannot_be_pickled_is_said() -> None:
    """A lock, an open file, a device handle."""
    lock = threading.Lock()

    def build(batch_size: int, device: str) -> Any:
        return lock

    with pytest.raises(WorkloadError) as caught:
        reference_of(build)
    assert str(caught.value) == (
        "the workload cannot be sent to a worker process: TypeError: cannot pickle '_thread.lock' object; define "
        "it at the top of a module, without references to open files, locks or devices"
    )


def test_what_is_no_workload_is_refused() -> None:
    """Before a worker is started for it."""
    with pytest.raises(
        WorkloadError, match=r"^the workload is of type int; a workload is a function build\(batch_size, "
    ):
        reference_of(3)


def test_a_damaged_pickle_is_said() -> None:
    """For instance one that was cut off."""
    with pytest.raises(WorkloadError, match=r"^the pickled workload cannot be loaded: "):
        load_build("pickle:AAAA")
