"""Settings, references and interpreters: what is understood, and what is refused in which words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dnnmem_tune.errors import MissingPackageError, UsageError, WorkloadError
from dnnmem_tune.frontends.mxnet.interpreter import find_interpreter
from dnnmem_tune.frontends.mxnet.settings import Execution, Settings, num_states
from dnnmem_tune.frontends.mxnet.workloads.references import Function, Named, SymbolFile, parse_reference


def test_settings_are_split_from_what_is_the_networks() -> None:
    """``execution`` is MXNet's, ``classes`` the network's."""
    settings, rest = Settings.split({"execution": "hybridized", "classes": 10})

    assert settings.execution is Execution.HYBRIDIZED
    assert rest == {"classes": 10}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"execution": "fast"}, "execution is one of executor, hybridized, static, imperative, got 'fast'"),
        ({"precision": "bf16"}, "precision is one of fp32, fp16, fp16-pure, got 'bf16'"),
        ({"grad_req": "null"}, "grad_req is one of write, add, got 'null'"),
        ({"mirror": 1}, "mirror is true or false, got 1"),
        ({"optimizer": "adamax2"}, "MXNet has no optimizer 'adamax2' that is known here"),
        ({"optimizer": "sgd(0.1)"}, "optimizer 'sgd(0.1)' is not understood; write a name, or a call"),
        ({"optimizer": 3}, "optimizer 3 is not understood"),
    ],
)
def test_impossible_setting_is_refused(params: dict[str, Any], message: str) -> None:
    """The message says what there is and what was received."""
    with pytest.raises(UsageError, match=re.escape(message)):
        Settings.split(params)


def test_momentum_counts_only_where_there_is_one() -> None:
    """SGD's default is none, Signum's 0.9."""
    assert (num_states("sgd"), num_states("SGD(momentum=0.9)"), num_states("signum")) == (0, 1, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ResNet50", Named("resnet50_v1")),
        ("BERT-base", Named("bert_base")),
        ("mobilenetv2_1.0", Named("mobilenetv2_1.0")),
        ("net-symbol.json", SymbolFile(Path("net-symbol.json"))),
        ("nets/a.py:make", Function("nets/a.py", "make")),
        ("package.nets:make", Function("package.nets", "make")),
    ],
)
def test_reference_has_one_meaning(text: str, expected: object) -> None:
    """Names are those of the PyTorch front-end where both have the network."""
    assert parse_reference(text) == expected


def test_reference_of_no_known_form_is_refused() -> None:
    """The message lists the forms."""
    with pytest.raises(WorkloadError, match=r"no MXNet workload 'a b'; give a built-in name"):
        parse_reference("a b")


def test_missing_interpreter_is_reported_with_the_command_that_makes_one(tmp_path: Path) -> None:
    """Nothing is installed on the user's behalf."""
    with pytest.raises(
        MissingPackageError, match=r"python3 -m venv \.venv-mxnet && .*mxnet==1\.9\.1 numpy==1\.23\.5"
    ):
        find_interpreter({}, (tmp_path,))


def test_variable_that_names_no_program_is_refused() -> None:
    """A wrong path is not silently replaced by another interpreter."""
    with pytest.raises(MissingPackageError, match=r"DNNMEM_MXNET_PYTHON names '/no/python', which is no program"):
        find_interpreter({"DNNMEM_MXNET_PYTHON": "/no/python"})


def test_interpreter_of_the_folder_is_found(tmp_path: Path) -> None:
    """``.venv-mxnet`` of the working folder or the checkout is what ``make test`` makes."""
    python = tmp_path / ".venv-mxnet" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()

    assert find_interpreter({}, (tmp_path,)) == str(python)
