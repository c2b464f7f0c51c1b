"""References become workloads, and what is wrong with the user's code is said with file and line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.torch.workloads.builtin import load_builtin
from dnnmem_tune.frontends.torch.workloads.resolve import load_build

BUILD = "def build(batch_size, device, width=1):\n    return lambda: (__name__, batch_size, width)\n"
WANTED = "a workload is a function build(batch_size, device, **hyperparameters), or a TrainingStep"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory that is the current one; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    loaded = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - loaded:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def write(path: str, text: str) -> None:
    """Write a file of the project, and its directories."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


@pytest.mark.parametrize("reference", ["train.py:build", "train.py", "./train.py:build", "train:build"])
def test_a_function_of_a_file_is_found(reference: str) -> None:
    """With ``build`` where no name is given, and as a module of the current directory too."""
    write("train.py", BUILD)
    assert load_build(reference)(8, "cpu", width=3)()[1:] == (8, 3)


def test_an_absolute_path_from_another_directory_works(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's own directory is searched for what it imports."""
    write("work/helper_of_train.py", "WIDTH = 5\n")
    write(
        "work/train.py",
        "from helper_of_train import WIDTH\ndef build(batch_size, device):\n    return lambda: WIDTH\n",
    )
    monkeypatch.chdir("/")
    assert load_build(f"{project}/work/train.py")(1, "cpu")() == 5


@pytest.mark.parametrize("reference", ["shop/models/train.py", "shop.models.train", "shop.models.train:build"])
def test_a_file_of_a_package_may_import_relatively(reference: str) -> None:
    """It is imported under its full name, by path as well as by module."""
    write("shop/__init__.py", "")
    write("shop/sizes.py", "WIDTH = 7\n")
    write("shop/models/__init__.py", "")
    write(
        "shop/models/train.py",
        "from ..sizes import WIDTH\ndef build(batch_size, device):\n    return lambda: WIDTH\n",
    )
    assert load_build(reference)(1, "cpu")() == 7


def test_a_main_guard_does_not_run() -> None:
    """The script's own training must not start."""
    write("train.py", BUILD + "if __name__ == '__main__':\n    raise RuntimeError('trained')\n")
    assert load_build("train.py")(1, "cpu")()[1] == 1


def test_a_method_and_a_training_step_are_found_by_name() -> None:
    """Dots lead into classes; an object that can be called counts as a function."""
    write(
        "train.py",
        "from dnnmem_tune import TrainingStep\n"
        "class Jobs:\n    @staticmethod\n    def small(batch_size, device):\n        return lambda: 'small'\n"
        "JOB = TrainingStep(model=dict, inputs=list)\n",
    )
    assert load_build("train.py:Jobs.small")(1, "cpu")() == "small"
    assert load_build("train.py:JOB").optimizer == "adamw"  # type: ignore[attr-defined]


def test_a_builtin_name_is_not_looked_up_as_a_module() -> None:
    """Its spelling is free."""
    write("resnet50.py", BUILD)
    assert load_build("ResNet50") is load_builtin("resnet50")
    assert load_build("resnet50:build")(4, "cpu")()[0] == "resnet50"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os\n\nx = 1 / 0\n", "train.py:3: ZeroDivisionError: division by zero"),
        ("def f():\n    raise ValueError('no\\n  way')\nf()\n", "train.py:2: ValueError: no way"),
        ("def build(:\n", "train.py:1: SyntaxError: invalid syntax"),
        ("import no_such_package\n", "train.py:1: ModuleNotFoundError: No module named 'no_such_package'"),
        ("import sys\nsys.exit('bye')\n", "train.py:2: SystemExit: bye"),
        ("import json\njson.loads('{')\n", "train.py:2: JSONDecodeError: Expecting property name enclosed in"),
        ("raise KeyError\n", "train.py:1: KeyError (raised while train.py was imported)"),
    ],
    ids=["raises", "raises in a function", "syntax", "import", "exit", "raises below a library", "without words"],
)
def test_a_file_that_cannot_be_imported_says_where_and_why(source: str, message: str) -> None:
    """The line is the last one that is the user's own, and the message is one line."""
    write("train.py", source)
    with pytest.raises(WorkloadError) as caught:
        load_build("train.py:build")
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("(raised while train.py was imported)")
    assert "\n" not in str(caught.value)


def test_an_error_in_an_imported_file_names_that_file(project: Path) -> None:
    """The mistake is there, not where it was imported."""
    write("layers_of_train.py", "\nprint(undefined_name)\n")
    write("train.py", "import layers_of_train\n")
    with pytest.raises(
        WorkloadError, match=rf"^{project}/layers_of_train.py:2: NameError: name 'undefined_name' is not"
    ):
        load_build("train.py")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("trian.py", "no file 'trian.py' (did you mean train.py?); give the path of a Python file"),
        ("elsewhere/x.py:f", "no file 'elsewhere/x.py'; give the path of a Python file"),
        ("train.py:bild", "train.py has no function 'bild' (did you mean build?); it defines build, swapped"),
        ("train.py:WIDTH", f"train.py:WIDTH is of type int; {WANTED}"),
        ("train:bild", "train has no function 'bild' (did you mean build?); it defines build, swapped"),
        (
            "nowhere:build",
            "no module 'nowhere' (No module named 'nowhere'); check the name, or give the path of the file",
        ),
        (
            "resnet52",
            "no workload 'resnet52' (did you mean resnet50?); give train.py:build, package.module:build, a "
            "built-in name, hf:CONFIG, timm:NAME or torchvision:NAME (built in: bert-base, bert-large, gpt2, "
            "inception_v3, lstm, mlp, resnet50, unet, vgg16, vit_b_16)",
        ),
    ],
)
def test_what_cannot_be_found_is_named(reference: str, message: str) -> None:
    """With near matches, and what there is."""
    write("train.py", "WIDTH = 3\n" + BUILD + "def swapped(device, batch_size): ...\n")
    with pytest.raises(WorkloadError) as caught:
        load_build(reference)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "signature", ["(device, batch_size)", "(width)", "()", "(batch_size)", "(batch_size, *, device)", "(bs, dev)"]
)
def test_a_function_that_takes_other_arguments_is_refused(project: Path, signature: str) -> None:
    """It would be called with a batch size where it expects something else."""
    write("train.py", f"\ndef build{signature}: ...\n")
    with pytest.raises(WorkloadError) as caught:
        load_build("train.py")
    assert str(caught.value) == f"{project}/train.py:2: it takes {signature}; {WANTED}"


@pytest.mark.parametrize(
    "signature", ["(*args)", "(batch_size, *rest, **options)", "(batch_size, device, /, **options)"]
)
def test_looser_signatures_are_accepted(signature: str) -> None:
    """The first two arguments are given by position."""
    write("train.py", f"def build{signature}:\n    return lambda: 1\n")
    assert load_build("train.py")(1, "cpu")() == 1
